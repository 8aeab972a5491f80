"""Events to bytes and back: canonical msgpack, an envelope, schema versions, upcasters.

Canonical: maps with sorted keys, floats as 64 bit, no dates, no extension types; so equal events
are equal bytes. An unknown optional field is ignored on reading; any other change of an event is a
new schema version with an upcaster from the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import msgpack
from pydantic import ValidationError

from eventlog.chain import Record
from eventlog.errors import EventInvalid
from eventlog.events import EVENTS, MAX_COUNT, Event, Token

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
MAX_DEPTH = 64  # of what an event may hold
UPCASTERS: dict[tuple[str, int], Upcaster] = {}  # (type, version) -> data of version + 1


class Envelope(NamedTuple):
    """What every event carries besides its data.

    id: unique on its subject; a retry keeps it. n: the source's own counter from 1 (R6).
    term, previous: on the coordinator's subject, the deciding term (None in a claim) and the id of
    the last valid event there (R5). incarnation: a site's, from its SiteAdmitted (None in a join).
    seen: the last decision a site had folded (R18). at: the source's clock, for people only.
    """

    id: str
    type: str
    version: int
    run: str
    source: str
    n: int
    at: float
    term: int | None = None
    previous: str | None = None
    incarnation: Token | None = None
    seen: Token | None = None


class Entry(NamedTuple):
    """A record with what could be read of it. `event` is None where `problem` says why not;
    `newer`: the type or schema version is not known here (R17), so it may mean something."""

    record: Record
    envelope: Envelope | None
    event: Event | None
    problem: str = ""
    newer: bool = False

    @property
    def token(self) -> Token:
        """(sequence, event id), by which other events name this one."""
        return (self.record.sequence, self.envelope.id if self.envelope else "")


def pack(value: Any) -> bytes:
    """Canonical msgpack of plain data, which nests no deeper than `bounded` lets it."""
    packed: bytes = msgpack.packb(_sorted(value), use_bin_type=True)
    return packed


def content_digest(value: Any) -> str:
    """sha256 of plain data's canonical bytes, in hex: what a configuration is known by."""
    return hashlib.sha256(pack(value)).hexdigest()


def unpack(data: bytes) -> Any:
    """Plain data from msgpack. Raises EventInvalid."""
    try:
        return msgpack.unpackb(data)  # text is text, and keys of maps are text or bytes
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise EventInvalid(f"not msgpack: {error}") from error


def bounded(value: Any) -> Any:
    """The value, where it nests at most MAX_DEPTH deep: msgpack reads deeper than it writes, and
    how deep Python gets depends on who called. Raises EventInvalid."""
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(MAX_DEPTH):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for part in parts for item in part if isinstance(item, _NESTED)]
    if not level:
        return value
    raise EventInvalid(f"it nests deeper than {MAX_DEPTH}")


def encode(event: Event, envelope: Envelope) -> bytes:
    """The canonical payload of an event."""
    wire: dict[str, Any] = {
        "id": envelope.id,
        "type": event.type,
        "v": event.schema_version,
        "run": envelope.run,
        "source": envelope.source,
        "n": envelope.n,
        "at": float(envelope.at),
        "data": event.model_dump(mode="python", exclude_none=True),
    }
    for key, value in zip(_LINKS, envelope[-len(_LINKS) :], strict=True):
        if value is not None:
            wire[key] = value
    return pack(wire)


def read_wire(payload: bytes) -> dict[str, Any]:
    """The payload as plain data, with all that an envelope needs. Raises EventInvalid."""
    wire: dict[str, Any] = unpack(payload)
    _checked(wire)
    return wire


def event_id(payload: bytes) -> str:
    """The event id within a payload. Raises EventInvalid."""
    return str(read_wire(payload)["id"])


def decode(record: Record) -> Entry:
    """Read a record; never raises: what cannot be read is an Entry with its problem."""
    try:
        wire = unpack(record.payload)
        needed = _checked(wire)
        envelope = _envelope(needed[:-1] + _links(wire.get))
    except EventInvalid as error:
        return Entry(record, None, None, str(error))
    name, version, data = envelope.type, envelope.version, needed[-1]
    kind = EVENTS.get(name)
    if kind is None:
        return Entry(record, envelope, None, f"unknown type {name!r}", newer=True)
    if version > kind.schema_version:
        text = f"{name} of schema {version}, known here is {kind.schema_version}"
        return Entry(record, envelope, None, text, newer=True)
    try:
        if version < kind.schema_version:
            data = _upcast(envelope, data)
        if name in _OPEN:
            bounded(data)
        return _entry((record, envelope, _READ[name](data), "", False))
    except (ValidationError, EventInvalid) as error:
        return Entry(record, envelope, None, f"{name}: {_first(error)}")


# From the tuple of all fields, without the detour through a constructor: a log has many records.
_envelope: Callable[[tuple[Any, ...]], Envelope] = partial(tuple.__new__, Envelope)
_entry: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)

_NEEDED: dict[str, type] = {  # in the order of Envelope's fields
    "id": str,
    "type": str,
    "v": int,
    "run": str,
    "source": str,
    "n": int,
    "at": float,
    "data": dict,
}
_READ: dict[str, Callable[[Any], Event]] = {  # what `model_validate` calls
    name: kind.__pydantic_validator__.validate_python for name, kind in EVENTS.items()
}
_OPEN = frozenset(  # of these a part may hold anything, and the fold packs it again
    name
    for name, kind in EVENTS.items()
    if any("JsonValue" in str(one.annotation) for one in kind.model_fields.values())
)
_LINKS = ("term", "previous", "incarnation", "seen")  # Envelope's last fields, which may be None
_NEEDED_TYPES = tuple(_NEEDED.values())
_needed = itemgetter(*_NEEDED)


def _checked(wire: Any) -> tuple[Any, ...]:
    """The values of an envelope's needed keys, each of its exact type. Raises EventInvalid."""
    if type(wire) is not dict:
        raise EventInvalid("the payload is not a map")
    try:
        values: tuple[Any, ...] = _needed(wire)
        if tuple(map(type, values)) == _NEEDED_TYPES:
            return values
    except KeyError:
        pass
    key = next(key for key, kind in _NEEDED.items() if type(wire.get(key)) is not kind)
    raise EventInvalid(f"the envelope's {key!r} is missing or no {_NEEDED[key].__name__}")


def _links(
    optional: Callable[[str], Any],
) -> tuple[int | None, str | None, Token | None, Token | None]:
    """Term, previous, incarnation and seen: by what an envelope names others."""
    term, previous = optional("term"), optional("previous")
    if term is not None and type(term) is not int:
        raise EventInvalid("the envelope's 'term' is no integer")
    if previous is not None and type(previous) is not str:
        raise EventInvalid("the envelope's 'previous' is no text")
    incarnation, seen = optional("incarnation"), optional("seen")
    if incarnation is not None:
        incarnation = _token("incarnation", incarnation)
    if seen is not None:
        seen = _token("seen", seen)
    return term, previous, incarnation, seen


def _upcast(envelope: Envelope, data: dict[str, Any]) -> dict[str, Any]:
    for version in range(envelope.version, EVENTS[envelope.type].schema_version):
        upcaster = UPCASTERS.get((envelope.type, version))
        if upcaster is None:
            raise EventInvalid(f"no upcaster from schema {version}")
        data = upcaster(data)
    return data


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _sorted(item) if isinstance(item := value[key], _NESTED) else item
            for key in _keys(value)
        }
    if isinstance(value, _NESTED):
        return [_sorted(item) if isinstance(item, _NESTED) else item for item in value]
    return value


def _keys(value: dict[Any, Any]) -> list[Any]:
    """Sorted; keys of bytes, which nobody writes and everybody may send, behind those of text."""
    try:
        return sorted(value)
    except TypeError:
        return sorted(value, key=lambda key: (isinstance(key, bytes), key))


_NESTED = (dict, list, tuple)


def _token(key: str, value: Any) -> Token:
    if type(value) is list and len(value) == 2:
        sequence, name = value
        if type(sequence) is int and 0 <= sequence <= MAX_COUNT and type(name) is str:
            return (sequence, name)
    raise EventInvalid(f"the envelope's {key!r} is not (sequence, event id)")


def _first(error: ValidationError | EventInvalid) -> str:
    if isinstance(error, EventInvalid):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
