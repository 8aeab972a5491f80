"""The digest chain, recomputed from its written definition."""

from __future__ import annotations

import hashlib
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from eventlog.chain import HEAD_BYTES, Record, extend, start, unpack_head

records = st.builds(
    Record,
    st.integers(1, 2**62),
    st.sampled_from(["coordinator", "operator", "site.a", "site.b-2", "agent.x"]),
    st.integers(-(2**62), 2**62),
    st.binary(max_size=200),
)


def by_hand(record: Record) -> bytes:
    subject = record.subject.encode()
    return (
        record.sequence.to_bytes(8, "big")
        + record.time_ns.to_bytes(8, "big", signed=True)
        + len(subject).to_bytes(2, "big")
        + len(record.payload).to_bytes(4, "big")
        + subject
        + record.payload
    )


@given(records)
def test_a_frame_is_the_documented_layout(record: Record) -> None:
    assert record.frame() == by_hand(record)
    head = unpack_head(record.frame()[:HEAD_BYTES])
    sizes = (len(record.subject.encode()), len(record.payload))
    assert head == (record.sequence, record.time_ns, *sizes)


@given(records, records)
def test_two_records_share_no_frame(one: Record, two: Record) -> None:
    assert (one.frame() == two.frame()) == (one == two)


@given(st.lists(records, max_size=5))
def test_the_digest_of_a_log_is_the_documented_chain(log: list[Record]) -> None:
    digest = start("run")
    expected = hashlib.sha256(b"atoll log 1\nrun").digest()
    assert digest == expected
    for record in log:
        digest = extend(digest, record)
        expected = hashlib.sha256(expected + by_hand(record)).digest()
        assert digest == expected


def test_time_is_iso_8601_utc_with_microseconds() -> None:
    record = Record(1, "operator", 1_700_000_000_123_456_789, b"")
    assert record.time() == "2023-11-14T22:13:20.123456+00:00"
    assert datetime.fromisoformat(record.time()).timestamp() == 1_700_000_000.123456
