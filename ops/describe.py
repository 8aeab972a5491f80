"""An event for scripts and for people: one JSON object, or one line."""

from __future__ import annotations

from typing import Any

from eventlog.codec import Entry, read_wire
from eventlog.errors import EventInvalid

_ENVELOPE = ("id", "n", "version", "term", "incarnation")
_MAX_ITEMS = 6  # of a list, in a line for people
_MAX_TEXT = 60
_UNPRINTABLE = {"\n": " ", "\r": " ", "\t": " "}


def as_json(entry: Entry) -> dict[str, Any]:
    """The documented object: sequence, time, type, source, data, the envelope's fields where the
    event has them, and `problem` where it cannot be read here."""
    record, envelope, event = entry.record, entry.envelope, entry.event
    found: dict[str, Any] = {
        "sequence": record.sequence,
        "time": record.time(),
        "type": envelope.type if envelope else None,
        "source": record.subject,
        "data": event.model_dump(mode="json", exclude_none=True) if event else _raw(entry),
    }
    for key in _ENVELOPE if envelope else ():
        value = getattr(envelope, key)
        if value is not None:
            found[key] = value
    if entry.problem:
        found["problem"] = entry.problem
    return found


def clean(text: str) -> str:
    """One line that is safe on a terminal: whatever a log holds, no control or formatting character
    reaches it (escape sequences, line breaks, changes of the writing direction)."""
    return "".join(char if char.isprintable() else _UNPRINTABLE.get(char, "�") for char in text)


def as_line(entry: Entry) -> str:
    """Sequence, time, source, type, what it says in brief, and the reason of a decision; safe on a
    terminal."""
    said = as_json(entry)
    head = f"{said['sequence']:>7}  {said['time'][:23]}  {said['source']:<16}"
    tail = f" — {reason}" if (reason := said["data"].get("reason")) else ""
    problem = f" (unreadable: {entry.problem})" if entry.problem else ""
    return clean(f"{head} {said['type'] or '?':<20} {brief(entry)}{tail}{problem}".rstrip())


def brief(entry: Entry) -> str:
    """The event's fields but its reason, long ones cut, as `key=value`; as they stand in the log,
    so not safe on a terminal."""
    data = as_json(entry)["data"]
    return " ".join(f"{key}={_brief(value)}" for key, value in data.items() if key != "reason")


def _raw(entry: Entry) -> dict[str, Any]:
    """The data of an event that is not known here, as it stands in the payload."""
    try:
        return dict(read_wire(entry.record.payload)["data"])
    except EventInvalid:
        return {}


def _brief(value: Any) -> str:
    match value:
        case [int(sequence), str()]:
            return f"#{sequence}"  # a token: the event it names
        case list():
            more = f",…{len(value)} in all" if len(value) > _MAX_ITEMS else ""
            return ",".join(map(_brief, value[:_MAX_ITEMS])) + more
        case dict():
            return "{" + " ".join(f"{key}={_brief(item)}" for key, item in value.items()) + "}"
        case float():
            return f"{value:.6g}"
        case str() if len(value) == 64 and set(value) <= set("0123456789abcdef"):
            return value[:12] + "…"
        case str() if len(value) > _MAX_TEXT:
            return value[:_MAX_TEXT] + "…"
    return str(value)
