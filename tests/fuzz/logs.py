"""Fuzzed: payloads of events, whole events in a run under way, log files, lists of chunks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import strategies as st

from eventlog import frames
from eventlog.blobs import CHUNK_BYTES, BlobRef, combine
from eventlog.chain import FORMAT, Record, extend, start
from eventlog.chunk_files import Meta
from eventlog.codec import Entry, decode, event_id, pack, unpack
from eventlog.errors import AtollError, BlobDamaged, EventInvalid, LogDamaged
from eventlog.events import EVENTS
from eventlog.export import read_export
from eventlog.file_log import FileLog
from eventlog.frames import Chunk
from eventlog.signatures import fault
from leases.table import LeaseTable
from ops import describe, logfile
from ops.output import print_json
from tests.eventlog.test_events import EXAMPLES
from tests.support.history import RUN, finish
from tests.support.odd import KEYS, NUMBERS, OTHERS, STEPS, changed
from tests.support.scenario import Scenario

PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
# what msgpack can say, and JSON cannot
WIRE = (b"", b"\xff", msgpack.ExtType(5, b"x"), msgpack.Timestamp(0), {b"a": 1, "a": 2}, 2**64 - 1)
ODD: st.SearchStrategy[Any] = st.sampled_from((*NUMBERS, *OTHERS, *WIRE))
KEY: st.SearchStrategy[Any] = st.sampled_from((*KEYS, b"", b"sig", "sig", "term", "seen"))


def packed(value: object) -> bytes:
    """msgpack of what it can say, nothing of the rest."""
    with contextlib.suppress(ValueError, OverflowError):
        return bytes(msgpack.packb(value))
    return b""


def plain(value: Any) -> Any:
    """Lists for tuples, as a wire has them."""
    return unpack(pack(value))


# -- payloads --------------------------------------------------------------------------------------


def wire(name: str) -> dict[str, Any]:
    """A whole payload of each type, as plain data."""
    return {
        "id": "e1",
        "type": name,
        "v": EVENTS[name].schema_version,
        "run": RUN,
        "source": "site.alpha",
        "n": 1,
        "at": 1.5,
        "term": 2,
        "previous": "e0",
        "incarnation": [3, "e3"],
        "seen": [4, "e4"],
        "sig": b"s" * 64,
        "data": plain(EXAMPLES[name]),
    }


WIRES = [wire(name) for name in EXAMPLES]
PAYLOADS = [packed(one) for one in WIRES] + [b"\x91" * 1500, b"\x81\xa1a" * 700]
TREES = st.builds(
    lambda one, steps, key, odd: packed(changed(one, steps, key, odd)),
    st.sampled_from(WIRES),
    STEPS,
    KEY,
    ODD,
)


def read_payload(data: bytes) -> None:
    """Decoded, signed or not, told to scripts and to people."""
    entry = decode(Record(7, "site.alpha", 0, data))
    assert (entry.event is None) == bool(entry.problem)
    with contextlib.suppress(EventInvalid):
        event_id(data)
    assert fault(data, [PUBLIC])
    told(entry)


def told(entry: Entry) -> None:
    """What `log show` prints of it, with --json and without."""
    assert describe.as_line(entry).isprintable()
    with contextlib.redirect_stdout(_Nowhere()):
        print_json(describe.as_json(entry))


class _Nowhere:
    """Takes whatever is printed, as UTF-8 would."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text.encode())

    def flush(self) -> None:
        """Nothing is held."""


# -- events in a run -------------------------------------------------------------------------------

SUBJECTS = ("coordinator", "operator", "planner", "site.alpha", "site.beta", "agent.alpha")
EVENT_WIRES = [
    [subject, name, plain(EXAMPLES[name])]
    for name, kind in EVENTS.items()
    for subject in SUBJECTS
    if subject.partition(".")[0] in kind.by
]
EVENT_SEEDS = [packed(one) for one in EVENT_WIRES]
IN_A_RUN = ([1, "e1"], [2, "e2"], [9, "?"], "alpha", 0, 1, 3, [0, 0], [[0, 1]])
EVENT_TREES = st.builds(
    lambda one, steps, key, odd, more: packed(
        [*one[:2], changed(changed(one[2], steps, key, odd), *more)]
    ),
    st.sampled_from(EVENT_WIRES),
    STEPS,
    KEY,
    st.one_of(ODD, st.sampled_from(IN_A_RUN)),
    st.tuples(STEPS, KEY, st.one_of(ODD, st.sampled_from(IN_A_RUN))),
)


@cache
def run_under_way() -> Scenario:
    """alpha and beta in round 1, some blocks trained, a delta of alpha's undecided."""
    run = Scenario(num_sequences=40)
    run.arrive("alpha", "beta")
    assert run.open(alpha=2, beta=2) == ""
    assert run.grant("alpha", 0, 1) == "" and run.grant("beta", 2, 3) == ""
    run.train("alpha", 0)
    return run


def fold_event(data: bytes) -> None:
    """Any content under an envelope that holds, judged by the whole fold, which never raises (R1).
    Nothing of it is kept: each input meets the same state."""
    try:
        subject, name, content = unpack(data)
    except (EventInvalid, ValueError, TypeError):
        return
    if subject not in SUBJECTS or not isinstance(name, str) or not isinstance(content, dict):
        return
    run = run_under_way()
    db, sequence = run.projection.db, run.projection.position.sequence + 1
    n, previous, _ = run.view.pen(subject)
    said = {"id": "f", "type": name, "v": 1, "run": RUN, "source": subject, "n": n + 1, "at": 0.0}
    if subject == "coordinator":
        said |= {"term": run.view.run().term, "previous": previous}
    elif subject in ("site.alpha", "site.beta"):
        said["incarnation"] = list(run.sites[subject.partition(".")[2]])
    entry = decode(Record(sequence, subject, 0, packed({**said, "data": content})))
    fold = LeaseTable()
    db.execute("BEGIN")
    try:
        fold.begin(db)
        assert isinstance(fold.apply(db, entry), str)
        fold.finish(db)
    finally:
        db.execute("ROLLBACK")


# -- log files -------------------------------------------------------------------------------------


def sound_file() -> bytes:
    """A log with two appends and a blob of three bytes."""
    records = [Record(k, "coordinator", k, PAYLOADS[k]) for k in (1, 2, 3)]
    parts, digest = [frames.pack_header(RUN)], start(RUN)
    for record in records:
        digest = extend(digest, record)
        parts.append(frames.pack_record(record, digest, more=record.sequence == 1))
    blob = BlobRef(combine([_sha(b"abc")], 3), 3)
    data, seal = frames.pack_chunk(digest, Chunk(blob, 0, b"abc"))
    return b"".join([*parts, data, frames.pack_footer(seal, digest, 3, [blob])])


def _sha(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


FILES = [sound_file(), frames.pack_header(RUN), FORMAT]


def read_file(data: bytes, folder: Path) -> None:
    """As an export, by `log verify`, and as a log that others write."""
    path = folder / "log.atoll"
    path.write_bytes(data)
    with contextlib.suppress(AtollError):
        verdict = logfile.verify(path)
        assert (verdict.problem is None) == _whole(read_export(path))
        finish(FileLog.open(path, read_only=True).close())


def _whole(records: Iterator[Record]) -> bool:
    try:
        for record in records:
            decode(record)
    except LogDamaged:
        return False
    return True


# a frame: (kind, head, body); sealed as it should be, so that what is within is read
SEALED = [
    packed([["R", 1, 5, "coordinator", PAYLOADS[0], False], ["F", 1, []]]),
    packed([["R", 1, 5, "operator", b"", True], ["R", 2, 5, "x", b"", False], ["F", 2, []]]),
    packed([["B", "ab" * 32, 0, 3, b"abc"], ["F", 0, [["ab" * 32, 3]]]]),
    packed([["B", combine([_sha(b"abc")], 3), 0, 3, b"abc"], ["F", 0, []]]),
]
SEALED_TREES = st.builds(
    lambda one, steps, key, odd, more: packed(
        changed(changed(unpack(one), steps, key, odd), *more)
    ),
    st.sampled_from(SEALED),
    STEPS,
    KEY,
    ODD,
    st.tuples(STEPS, KEY, ODD),
)


def read_sealed(data: bytes, folder: Path) -> None:
    """Frames of any content whose checksums and seals are right: who forges can compute them."""
    with contextlib.suppress(EventInvalid):
        read_file(b"".join([frames.pack_header(RUN), *_sealed(unpack(data))]), folder)


def _sealed(content: object) -> Iterable[bytes]:
    digest = seal = start(RUN)
    for frame in content if isinstance(content, list) else []:
        with contextlib.suppress(Exception):  # content that no frame can hold
            kind, *said = frame
            if kind == "R":
                sequence, at, subject, payload, more = said
                record = Record(sequence, subject, at, payload)
                digest = extend(digest, record)
                yield frames.pack_record(record, digest, bool(more))
                seal = digest
            elif kind == "B":
                name, offset, num_bytes, chunk = said
                piece = Chunk(BlobRef(name, num_bytes), offset, chunk)
                packed_chunk, seal = frames.pack_chunk(seal, piece)
                yield packed_chunk
            else:
                num, blobs = said
                held = [BlobRef(*blob) for blob in blobs]
                yield frames.pack_footer(seal, digest, num, held)


# -- lists of chunks -------------------------------------------------------------------------------

META = Meta(CHUNK_BYTES + 1, (_sha(b"a"), _sha(b"b")))
METAS = [META.encode(), Meta(0, ()).encode()]
META_TREES = st.builds(
    lambda one, steps, key, odd: packed(changed(unpack(one), steps, key, odd)),
    st.sampled_from(METAS),
    STEPS,
    KEY,
    ODD,
)


def read_chunks(data: bytes) -> None:
    """Under the name of another blob, and under the name that it gives itself."""
    names = [META.digest, ""]
    with contextlib.suppress(Exception):  # it names nothing
        said = unpack(data)
        joined = said["chunks"]
        parts = [joined[at : at + 32] for at in range(0, len(joined), 32)]
        names.append(combine(parts, said["num_bytes"]))
    for name in names:
        with contextlib.suppress(BlobDamaged):
            meta = Meta.decode(data, name)
            assert meta.digest == name
            assert sum(meta.length(k) for k in range(len(meta.chunks))) == meta.num_bytes


def as_json_text(value: object) -> bytes:
    """JSON of what it can say."""
    with contextlib.suppress(ValueError, TypeError):
        return json.dumps(value).encode()
    return b""
