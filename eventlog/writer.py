"""One source's pen: numbers its events, expects its own last sequence, never writes twice.

Every source of a run (coordinator, operator, site, agent, planner) appends through a `Writer`. It
holds nothing that the log does not hold: after a `Conflict` the owner reads on, and `set` puts
the pen behind the newest event of its subject.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eventlog.codec import Envelope, encode
from eventlog.events import Event, Token
from eventlog.keys import Key
from eventlog.log import EventLog
from eventlog.signatures import SIGNED, seal


def new_id() -> str:
    """An event id, unique for all practical purposes: 128 random bits in hex."""
    return os.urandom(16).hex()


@dataclass(slots=True)
class Stamp:
    """What a source puts on all events of one append besides id and counter."""

    term: int | None = None
    incarnation: Token | None = None
    seen: Token | None = None


@dataclass(slots=True)
class Writer:
    """`n`: the counter of the last valid event; `last`: the subject's last sequence, valid or
    void; `previous`: id of the last valid event. `chained`: whether events name it (R5)."""

    log: EventLog
    subject: str
    chained: bool = False
    clock: Callable[[], float] = time.time
    make_id: Callable[[], str] = new_id
    key: Key | None = None  # signs what has to be signed (`eventlog.signatures`)
    n: int = 0
    last: int = 0
    previous: str | None = None
    ids: list[str] = field(default_factory=list)  # of the newest append, in order
    _tried: tuple[list[bytes], int, int] = ([], 0, 0)  # payloads, and n and last before them

    def set(self, n: int, previous: str, last: int) -> None:
        """Put the pen where the fold says that it stands (`leases.view.View.pen`)."""
        self.n, self.previous, self.last = n, previous or None, last

    def payloads(self, events: Sequence[Event], stamp: Stamp) -> list[bytes]:
        """The events as they would be appended next; changes nothing but `ids`."""
        self.ids = [self.make_id() for _ in events]
        now, previous, out = self.clock(), self.previous, []
        for offset, (event, name) in enumerate(zip(events, self.ids, strict=True), start=1):
            envelope = Envelope(
                id=name,
                type=event.type,
                version=event.schema_version,
                run=self.log.run,
                source=self.subject,
                n=self.n + offset,
                at=now,
                term=stamp.term,
                previous=previous if self.chained else None,
                incarnation=stamp.incarnation,
                seen=stamp.seen,
            )
            payload = encode(event, envelope)
            if self.key is not None and type(event) in SIGNED:
                payload = seal(payload, self.key)
            out.append(payload)
            previous = name
        return out

    async def append(self, events: Sequence[Event], stamp: Stamp) -> int:
        """Append as one atomic batch; the sequence of the last event.

        Raises Conflict: nothing was written, somebody else wrote on this subject. The pen moves
        only by what the log says (`set`), except that it knows its own success.
        """
        self._tried = (self.payloads(events, stamp), self.n, self.last)
        return await self.retry()

    async def retry(self) -> int:
        """Append once more what the newest `append` tried, under the same ids and expectation:
        after LogUnavailable, when nothing is known of it. Raises as `append`.

        The pen may have been set since, behind the very events that were thought lost; it then
        stays where it is, and nothing is written twice.
        """
        payloads, n, last = self._tried
        sequence = await self.log.append(self.subject, payloads, last)
        if sequence > self.last:
            self.last, self.n, self.previous = sequence, n + len(payloads), self.ids[-1]
        return sequence
