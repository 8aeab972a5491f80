"""Real events for tests: encoded with the codec, with ids that a test can choose."""

from __future__ import annotations

from eventlog.codec import Envelope, encode
from eventlog.events import CoordinatorElected, CoordinatorTick, Event, Heartbeat
from eventlog.writer import new_id


def payload(
    event: Event, n: int = 1, *, subject: str = "coordinator", name: str = "", run: str = "tests"
) -> bytes:
    """An event as a source would write it; `name` is its id, a new one where it is empty."""
    envelope = Envelope(
        id=name or new_id(),
        type=event.type,
        version=event.schema_version,
        run=run,
        source=subject,
        n=n,
        at=1_700_000_000.0,
    )
    return encode(event, envelope)


def tick(number: int, name: str = "") -> bytes:
    """A coordinator's tick."""
    return payload(CoordinatorTick(tick=number), number, name=name)


def claim(holder: str) -> bytes:
    """A claim of the coordinator's term."""
    return payload(CoordinatorElected(holder=holder, reason="no coordinator yet"))


def beat(site: str, number: int, name: str = "") -> bytes:
    """A site's heartbeat."""
    event = Heartbeat(phase="training", step=number, tokens=number * 1024, tokens_per_s=512.0)
    return payload(event, number, subject=f"site.{site}", name=name)
