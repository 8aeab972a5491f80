"""The codec: canonical bytes, schema versions, and payloads that are none."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from eventlog import codec
from eventlog.chain import Record
from eventlog.codec import Envelope, decode, encode, event_id, pack, unpack
from eventlog.errors import EventInvalid
from eventlog.events import CoordinatorTick, PlacementPlanned, RunPaused

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def wire(**changes: object) -> dict[str, object]:
    """A good payload as plain data, changed."""
    good: dict[str, object] = {
        "id": "e1",
        "type": "coordinator.tick",
        "v": 1,
        "run": "r",
        "source": "coordinator",
        "n": 1,
        "at": 1.5,
        "data": {"tick": 7},
    }
    good.update(changes)
    return {key: value for key, value in good.items() if value is not ...}


def read(data: object) -> codec.Entry:
    return decode(Record(3, "coordinator", 0, msgpack.packb(data)))


@given(plain)
def test_plain_data_comes_back(value: object) -> None:
    assert unpack(pack(value)) == value


@given(st.dictionaries(st.text(), st.integers(0, 9), max_size=6), st.randoms())
def test_equal_maps_are_equal_bytes_in_any_order(value: dict[str, int], random: object) -> None:
    items = list(value.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert pack(dict(items)) == pack(value)
    assert pack({"deep": [dict(items)]}) == pack({"deep": [value]})


def test_an_event_is_the_documented_envelope() -> None:
    envelope = Envelope(
        "e1", "run.paused", 1, "r", "coordinator", 4, 2, term=9, previous="e0", seen=(3, "e3")
    )
    payload = encode(RunPaused(reason="maintenance"), envelope)
    assert msgpack.unpackb(payload) == {
        "at": 2.0,
        "data": {"reason": "maintenance"},
        "id": "e1",
        "n": 4,
        "previous": "e0",
        "run": "r",
        "seen": [3, "e3"],
        "source": "coordinator",
        "term": 9,
        "type": "run.paused",
        "v": 1,
    }
    keys = list(msgpack.unpackb(payload))
    assert keys == sorted(keys)
    entry = decode(Record(5, "coordinator", 0, payload))
    assert (entry.event, entry.envelope) == (RunPaused(reason="maintenance"), envelope)
    assert (entry.token, entry.problem, entry.newer) == ((5, "e1"), "", False)
    assert event_id(payload) == "e1"


def test_an_unknown_optional_field_keeps_the_version() -> None:
    entry = read(wire(data={"tick": 7, "mood": "fine"}, tomorrow=1))
    assert entry.event == CoordinatorTick(tick=7)


@pytest.mark.parametrize("change", [{"type": "coordinator.sang"}, {"v": 2}])
def test_what_a_newer_program_wrote_is_known_as_such(change: dict[str, object]) -> None:
    entry = read(wire(**change))
    assert entry.newer
    assert entry.event is None
    assert entry.envelope is not None
    assert entry.envelope.id == "e1"
    assert entry.problem


def test_an_old_schema_is_lifted_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatorTick, "schema_version", 3)
    monkeypatch.setitem(codec.UPCASTERS, ("coordinator.tick", 1), lambda d: {"number": d["no"]})
    monkeypatch.setitem(codec.UPCASTERS, ("coordinator.tick", 2), lambda d: {"tick": d["number"]})
    for version, data in ((1, {"no": 7}), (2, {"number": 7}), (3, {"tick": 7})):
        assert read(wire(v=version, data=data)).event == CoordinatorTick(tick=7)
    broken = read(wire(v=0, data={}))
    assert broken.event is None
    assert not broken.newer
    assert "no upcaster from schema 0" in broken.problem


@pytest.mark.parametrize("key", ["id", "type", "v", "run", "source", "n", "at", "data"])
@pytest.mark.parametrize("value", [..., None, True, b"bytes", []])
def test_a_broken_envelope_is_a_problem_that_names_the_field(key: str, value: object) -> None:
    entry = read(wire(**{key: value}))
    assert entry.event is None
    assert not entry.newer
    assert repr(key) in entry.problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("term", "9"),
        ("term", True),
        ("previous", 3),
        ("incarnation", [1]),
        ("incarnation", ["a", 1]),
        ("incarnation", [True, "a"]),
        ("seen", {"a": 1}),
    ],
)
def test_a_broken_link_is_a_problem(key: str, value: object) -> None:
    entry = read(wire(**{key: value}))
    assert entry.event is None
    assert key in entry.problem


@pytest.mark.parametrize("data", [{}, {"tick": 0}, {"tick": "x"}, {"tick": None}])
def test_wrong_data_is_a_problem_that_names_type_and_field(data: dict[str, object]) -> None:
    entry = read(wire(data=data))
    assert entry.event is None
    assert not entry.newer
    assert "coordinator.tick: tick" in entry.problem


@given(st.binary(max_size=300))
@example(b"\xc1")
@example(b"\x91" * 2000)
@example(b"\xdf\xff\xff\xff\xff")
@example(msgpack.packb(wire(v=10**12)))
@example(msgpack.packb(wire(v=-(10**12))))
@example(msgpack.packb(wire(data={1: 2}), use_bin_type=True))
@example(msgpack.packb(wire(id=msgpack.Timestamp(1, 1))))
@example(b"\x81\xa1a\xd9\x01\xff")
def test_bytes_that_are_no_event_never_raise(payload: bytes) -> None:
    entry = decode(Record(1, "site.a", 0, payload))
    assert entry.event is None
    assert entry.problem
    assert entry.record.payload == payload


@given(st.dictionaries(st.sampled_from([*wire(), "term", "seen", "incarnation"]), plain))
def test_any_change_of_an_envelope_never_raises(changes: dict[str, object]) -> None:
    entry = decode(Record(1, "site.a", 0, pack(wire(**changes))))
    assert (entry.event is None) == bool(entry.problem)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_never_raises(place: int, value: int) -> None:
    payload = bytearray(msgpack.packb(wire()))
    payload[place % len(payload)] = value
    entry = decode(Record(1, "coordinator", 0, bytes(payload)))
    assert (entry.event is None) == bool(entry.problem)


def test_event_id_of_what_is_no_event_is_refused() -> None:
    for payload in (b"", b"\x01", msgpack.packb({"id": 3}), msgpack.packb([])):
        with pytest.raises(EventInvalid):
            event_id(payload)


def test_what_an_event_may_hold_freely_is_what_a_reader_gets_of_it() -> None:
    said = PlacementPlanned(actions=({"shape": (1, 600)},), estimates=(), reason="why")
    assert said.actions == ({"shape": [1, 600]},)
    content = said.model_dump()
    assert read(wire(type="placement.planned", data=content)).event == said
    with pytest.raises(ValidationError):
        PlacementPlanned(actions=({"shape": b"1"},), estimates=(), reason="why")


def test_what_an_event_may_hold_freely_has_a_depth() -> None:
    deep: object = 1
    for _ in range(codec.MAX_DEPTH):
        deep = [deep]
    data = {"actions": [{"a": deep}], "estimates": [], "reason": "why"}
    entry = read(wire(type="placement.planned", data=data))
    assert entry.event is None and "nests deeper" in entry.problem
    assert codec.bounded([[1], {"a": [2]}]) == [[1], {"a": [2]}]
    assert pack({"b": 1, b"a": 2}) == pack({b"a": 2, "b": 1})
