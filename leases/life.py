"""The life of one block: every event that touched it, and what the fold made of it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field

from eventlog.codec import Entry
from eventlog.events import (
    BlockCompleted,
    BlockQuarantined,
    BlockStarted,
    DeltaPublished,
    DeltaRefused,
    Event,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    RoundClosed,
    RoundCommitted,
)
from leases.states import AVAILABLE


@dataclass(frozen=True, slots=True)
class Moment:
    """One event in the life of a block. `time`: the broker's; `void`: '' or why it counts not."""

    sequence: int
    time: str
    source: str
    type: str
    says: str
    before: str
    after: str
    void: str


@dataclass(slots=True)
class Life:
    """Collects the moments of a block while an `Audit` folds the log."""

    epoch: int
    block: int
    moments: list[Moment] = field(default_factory=list)

    def summary(self) -> str:
        """The life in one line."""
        moves = Counter(one.type for one in self.moments if one.after != one.before)
        merged = [one for one in self.moments if one.after == "merged" != one.before]
        returned = sum(one.after == AVAILABLE != one.before for one in self.moments)
        end = self.moments[-1].after if self.moments else AVAILABLE
        parts = [f"granted {moves['lease.granted']}×, came back {returned}×"]
        parts += [f"merged at {one.sequence}" for one in merged] or [f"{end} at the end"]
        num_void = sum(bool(one.void) for one in self.moments)
        parts += [f"{num_void} event{'s' * (num_void != 1)} void"] if num_void else []
        return f"block {self.epoch}:{self.block}: " + "; ".join(parts)

    def look(self, db: sqlite3.Connection) -> str:
        """The block's state now."""
        row = db.execute(
            "SELECT state FROM blocks WHERE epoch = ? AND block = ?", (self.epoch, self.block)
        ).fetchone()
        return str(row[0]) if row else AVAILABLE

    def note(self, db: sqlite3.Connection, entry: Entry, void: str, before: str) -> None:
        """Keep an event that names the block, or that changed it."""
        after, event = self.look(db), entry.event
        if event is None or entry.envelope is None:
            return
        if after == before and not self._named(event) and not self._carried(db, event):
            return
        record = entry.record
        says = _says(event)
        self.moments.append(
            Moment(
                record.sequence,
                record.time(),
                record.subject,
                event.type,
                says,
                before,
                after,
                void,
            )
        )

    def _named(self, event: Event) -> bool:
        key = (self.epoch, self.block)
        match event:
            case LeaseGranted() | LeaseStolen():
                return event.epoch == self.epoch and self.block in event.blocks
            case BlockStarted() | BlockCompleted() | BlockQuarantined():
                return (event.epoch, event.block) == key
            case LeaseReclaimed():
                return key in event.blocks
            case DeltaPublished():
                return any((one.epoch, one.block) == key for one in event.blocks)
        return False

    def _carried(self, db: sqlite3.Connection, event: Event) -> bool:
        """Whether a delta that holds the block is cut, merged or refused by the event."""
        match event:
            case RoundClosed():
                deltas = [cut.delta[0] for cut in event.deltas]
            case DeltaRefused():
                deltas = [event.delta[0]]
            case RoundCommitted():
                rows = db.execute("SELECT delta FROM audit_members WHERE cut = ?", (event.cut[0],))
                deltas = [row[0] for row in rows]
            case _:
                return False
        return any(
            db.execute(
                "SELECT 1 FROM audit_delta_blocks WHERE delta = ? AND epoch = ? AND block = ?",
                (delta, self.epoch, self.block),
            ).fetchone()
            for delta in deltas
        )


def _says(event: Event) -> str:
    match event:
        case BlockStarted():
            return f"under lease {event.lease[0]}"
        case BlockCompleted():
            return f"under lease {event.lease[0]}, loss {event.loss:.4g} in {event.seconds:.2f} s"
        case DeltaPublished():
            return f"one of {len(event.blocks)} blocks, based on version {event.base_version}"
        case LeaseGranted():
            return f"to {event.site} (incarnation {event.incarnation[0]}): {event.reason}"
        case RoundCommitted():
            return f"version {event.version}: {event.reason}"
    return str(getattr(event, "reason", ""))
