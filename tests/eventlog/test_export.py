"""Exports: whatever is changed in the file is found, and named by its sequence."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventlog.blobs import CHUNK_BYTES, digest_file
from eventlog.chain import Record
from eventlog.errors import AtollError, BlobDamaged, LogDamaged, RunUnknown
from eventlog.export import extract_blobs, read_export, read_header, to_end, write_export
from eventlog.file_log import FileLog
from eventlog.memory_log import MemoryLog
from tests.contract.events import beat, tick

NUM_EVENTS = 6
FRAME_OVERHEAD = 5 + 22 + 32  # prefix, head and seal around subject and payload
sharing = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def history(num_events: int = NUM_EVENTS) -> list[Record]:
    """Events of three subjects in turn; ids are fixed, so the bytes are."""
    records = []
    for number in range(1, num_events + 1):
        subject = ("coordinator", "site.a", "site.b")[number % 3]
        name = f"event-{number}"
        body = tick(number, name) if number % 3 == 0 else beat(subject[-1], number, name)
        records.append(Record(number, subject, 1_700_000_000 * 10**9 + number, body))
    return records


async def batched(records: Sequence[Record], size: int = 4) -> AsyncIterator[list[Record]]:
    for begin in range(0, len(records), size):
        yield list(records[begin : begin + size])


def spans(records: Sequence[Record], run: str = "r") -> list[tuple[int, int]]:
    """Where the records' frames lie in the file, by the documented layout."""
    begin, out = 12 + 2 + len(run) + 32, []
    for record in records:
        end = begin + FRAME_OVERHEAD + len(record.subject) + len(record.payload)
        out.append((begin, end))
        begin = end
    return out


def chained(records: Sequence[Record], run: str = "r") -> str:
    """D of the last record, by its definition."""
    digest = hashlib.sha256(b"atoll log 1\n" + run.encode()).digest()
    for record in records:
        digest = hashlib.sha256(digest + record.frame()).digest()
    return digest.hex()


def drain(path: Path) -> tuple[list[Record], LogDamaged]:
    """What a damaged export gives before it says so."""
    seen: list[Record] = []
    with pytest.raises(LogDamaged) as caught:
        for record in read_export(path):
            seen.append(record)
    return seen, caught.value


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    await write_export("r", batched(history()), tmp_path / "r.log")
    return tmp_path / "r.log"


async def test_an_export_reads_back_as_it_was_with_its_digest(tmp_path: Path) -> None:
    records = history(50)
    summary = await write_export("r", batched(records), tmp_path / "x.log")
    assert list(read_export(tmp_path / "x.log")) == records
    assert read_header(tmp_path / "x.log") == "r"
    assert (summary.num_records, summary.last_sequence, summary.num_blobs) == (50, 50, 0)
    assert summary.log_digest == chained(records)
    assert summary.num_bytes == (tmp_path / "x.log").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["x.log"]


async def test_the_file_is_the_documented_layout(exported: Path) -> None:
    data, records = exported.read_bytes(), history()
    assert data.startswith(b"atoll log 1\n\x00\x01r" + hashlib.sha256(b"atoll log 1\nr").digest())
    for number, (begin, end) in enumerate(spans(records), start=1):
        frame = records[number - 1].frame()
        assert data[begin : begin + 1] == b"R"
        assert data[begin + 5 : end - 32] == frame
        assert data[end - 32 : end].hex() == chained(records[:number])
    footer = data[spans(records)[-1][1] :]
    assert footer[:1] == b"F"
    body = footer[9:-32]
    assert footer[5:9] == len(body).to_bytes(4, "big")
    assert msgpack.unpackb(body) == {
        "records": NUM_EVENTS,
        "last_sequence": NUM_EVENTS,
        "log_digest": chained(records),
        "blobs": [],
    }
    closing = hashlib.sha256(bytes.fromhex(chained(records)) + footer[5:-32]).digest()
    assert footer[-32:] == closing


async def test_an_empty_log_is_a_whole_export(tmp_path: Path) -> None:
    summary = await write_export("empty", batched([]), tmp_path / "x.log")
    assert list(read_export(tmp_path / "x.log")) == []
    assert (summary.last_sequence, summary.log_digest) == (0, chained([], "empty"))


@sharing
@given(place=st.integers(min_value=0), bits=st.integers(1, 255))
def test_any_changed_byte_is_found_and_named(exported: Path, place: int, bits: int) -> None:
    good = exported.read_bytes()
    place %= len(good)
    bad = exported.with_name("bad.log")
    bad.write_bytes(good[:place] + bytes([good[place] ^ bits]) + good[place + 1 :])
    first = spans(history())[0][0]
    if place < first:
        with pytest.raises(AtollError):
            list(read_export(bad))
        return
    frame = sum(end <= place for _, end in spans(history())) + 1
    seen, error = drain(bad)
    assert error.sequence == frame
    assert seen == history()[: frame - 1]


@sharing
@given(data=st.data())
def test_any_cut_is_found_after_the_whole_events(exported: Path, data: st.DataObject) -> None:
    good, places = exported.read_bytes(), spans(history())
    cut = data.draw(st.integers(0, len(good) - 1))
    bad = exported.with_name("bad.log")
    bad.write_bytes(good[:cut])
    if cut < places[0][0]:
        with pytest.raises(AtollError):
            list(read_export(bad))
        return
    num_whole = sum(end <= cut for _, end in places)
    seen, error = drain(bad)
    assert seen == history()[:num_whole]
    assert error.sequence == num_whole + 1
    assert "footer" in error.what
    assert f"the last whole event is {num_whole}" in error.what


@pytest.mark.parametrize("gone", range(1, NUM_EVENTS + 1))
def test_a_removed_event_is_named(exported: Path, gone: int) -> None:
    good = exported.read_bytes()
    begin, end = spans(history())[gone - 1]
    exported.write_bytes(good[:begin] + good[end:])
    seen, error = drain(exported)
    assert error.sequence == gone
    assert "missing" in error.what
    assert seen == history()[: gone - 1]


@pytest.mark.parametrize(("one", "two"), [(1, 2), (1, 6), (3, 5), (5, 6)])
def test_of_two_swapped_events_the_first_is_named(exported: Path, one: int, two: int) -> None:
    good, places = exported.read_bytes(), spans(history())
    frames = [good[begin:end] for begin, end in places]
    frames[one - 1], frames[two - 1] = frames[two - 1], frames[one - 1]
    exported.write_bytes(good[: places[0][0]] + b"".join(frames) + good[places[-1][1] :])
    seen, error = drain(exported)
    assert error.sequence == one
    assert seen == history()[: one - 1]


async def test_an_event_of_another_log_is_named_though_its_frame_is_whole(
    exported: Path, tmp_path: Path
) -> None:
    other = history()
    other[2] = Record(3, other[2].subject, other[2].time_ns, tick(999))
    await write_export("r", batched(other), tmp_path / "other.log")
    begin, end = spans(history())[2]
    alien = (tmp_path / "other.log").read_bytes()[slice(*spans(other)[2])]
    good = exported.read_bytes()
    exported.write_bytes(good[:begin] + alien + good[end:])
    assert drain(exported)[1].sequence == 4  # forged with its digest: where the chain breaks
    exported.write_bytes(good[:begin] + alien[:-32] + good[end - 32 :])
    assert drain(exported)[1].sequence == 3


@pytest.mark.parametrize("more", [b"\x00", b"R", b"x" * 5000])
def test_bytes_behind_the_footer_are_found(exported: Path, more: bytes) -> None:
    exported.write_bytes(exported.read_bytes() + more)
    seen, error = drain(exported)
    assert seen == history()
    assert "follow the footer" in error.what


def test_what_is_no_log_is_said_to_be_none(tmp_path: Path) -> None:
    for content in (b"", b"atoll", b"PK\x03\x04 something else entirely"):
        (tmp_path / "file").write_bytes(content)
        for read in (read_header, read_export):
            with pytest.raises(AtollError, match="is no atoll log"):
                read(tmp_path / "file")
    with pytest.raises(RunUnknown, match="there is no log file"):
        read_header(tmp_path / "nothing")
    with pytest.raises(AtollError, match="cannot be read"):
        read_export(tmp_path)


async def test_a_gap_in_the_source_leaves_no_file(tmp_path: Path) -> None:
    records = history()
    del records[3]
    with pytest.raises(LogDamaged) as caught:
        await write_export("r", batched(records), tmp_path / "x.log")
    assert caught.value.sequence == 4
    assert list(tmp_path.iterdir()) == []


async def test_a_log_exports_to_where_it_ends(tmp_path: Path) -> None:
    log = MemoryLog("r")
    for number in range(5):
        await log.append("coordinator", [tick(n) for n in range(1, 451)], number * 450)
    await write_export("r", to_end(log), tmp_path / "x.log")
    assert list(read_export(tmp_path / "x.log")) == await log.read(0, limit=5000)


async def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    num_events, body = 6000, bytes(4000)  # 24 MB

    async def long() -> AsyncIterator[list[Record]]:
        for begin in range(1, num_events + 1, 100):
            yield [Record(n, "operator", n, body) for n in range(begin, begin + 100)]

    tracemalloc.start()
    try:
        await write_export("r", long(), tmp_path / "x.log")
        assert sum(1 for _ in read_export(tmp_path / "x.log")) == num_events
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


# -- blobs ----------------------------------------------------------------------------------------


def blob(path: Path, num_bytes: int) -> tuple[str, Path]:
    path.write_bytes(random.Random(num_bytes).randbytes(num_bytes))
    return digest_file(path).digest, path


async def test_blobs_travel_with_the_log(tmp_path: Path) -> None:
    sizes = (0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5)
    blobs = [blob(tmp_path / f"b{size}", size) for size in sizes]
    summary = await write_export("r", batched(history()), tmp_path / "x.log", blobs)
    assert summary.num_blobs == 4
    assert summary.log_digest == chained(history())
    assert list(read_export(tmp_path / "x.log")) == history()
    refs = extract_blobs(tmp_path / "x.log", tmp_path / "store")
    assert {ref.digest: ref.num_bytes for ref in refs} == {
        digest: path.stat().st_size for digest, path in blobs
    }
    for digest, path in blobs:
        assert (tmp_path / "store" / digest).read_bytes() == path.read_bytes()
    log = FileLog.open(tmp_path / "x.log", read_only=True)
    assert await log.read(0) == history()
    await log.close()


@pytest.fixture
async def with_blobs(tmp_path: Path) -> Path:
    blobs = [blob(tmp_path / f"b{size}", size) for size in (3, 700)]
    await write_export("r", batched(history()), tmp_path / "r.log", blobs)
    return tmp_path / "r.log"


@sharing
@given(place=st.integers(min_value=0))
def test_damage_among_the_blobs_is_found(with_blobs: Path, place: int) -> None:
    good = with_blobs.read_bytes()
    begin = spans(history())[-1][1]
    place = begin + place % (len(good) - begin)
    bad = with_blobs.with_name("bad.log")
    bad.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    seen, error = drain(bad)
    assert (seen, error.sequence) == (history(), NUM_EVENTS + 1)
    bad.write_bytes(good[:place])
    seen, error = drain(bad)
    assert (seen, error.sequence) == (history(), NUM_EVENTS + 1)
    assert "footer" in error.what


async def test_a_file_that_is_not_its_blob_is_not_exported(tmp_path: Path) -> None:
    digest, path = blob(tmp_path / "b", 1000)
    path.write_bytes(b"something else")
    with pytest.raises(BlobDamaged, match=digest):
        await write_export("r", batched(history()), tmp_path / "x.log", [(digest, path)])
    assert not (tmp_path / "x.log").exists()
