"""Looks at every event at the moment it stands, and holds the run against what it promises.

The audit judges the log (P1, P3, P4, P5, R1 to R19); a recount holds the lease table's counters
against its rows; and θ of every committed version must be the closed form of exactly the blocks
that the ledger says are merged, with the weights it gives them.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import (
    Event,
    LeaseReclaimed,
    RoundCommitted,
    RunFinished,
    SiteDeparted,
    VersionApplied,
)
from leases.audit import Audit
from leases.states import OUTSTANDING
from sitehub.rehearsal import ClosedForm

KEPT = 40  # last events that a trace shows


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that did not hold, when, and at which event."""

    at_s: float
    sequence: int
    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise} at {self.at_s:.3f} s, sequence {self.sequence}: {self.what}"


class Watcher:
    """`size`, `num_blocks`: of the virtual model (`sitehub.rehearsal`). `every`: the recount of
    the whole table comes after so many events."""

    def __init__(self, run: str, size: int, num_blocks: int, every: int) -> None:
        self.audit = Audit(run)
        self.view = self.audit.view
        self.broken: list[Broken] = []
        self.events: deque[str] = deque(maxlen=KEPT)
        self.departures: list[dict[str, object]] = []
        self.reclaimed_unstarted = self.reclaimed_started = 0
        self._num_blocks, self._every = num_blocks, every
        self._merged: set[int] = set()
        self._theta = ClosedForm(size)
        self._num_seen = 0
        self._num_violations = 0

    def see(self, records: list[Record], now: float, say: Callable[[str], None]) -> None:
        """Judge events that have just been stored."""
        for record in records:
            entry = decode(record)
            freeing = isinstance(entry.event, SiteDeparted | LeaseReclaimed | RunFinished)
            before = self._undelivered() if freeing else {}
            self.audit.feed([record])
            kind = entry.envelope.type if entry.envelope else "?"
            line = f"{now:9.3f} s  {record.sequence:5d} {record.subject:14s} {kind}"
            self.events.append(f"{line} {getattr(entry.event, 'reason', '')}"[:200])
            say(self.events[-1])
            if isinstance(entry.event, RoundCommitted):
                self._committed(record, entry.event, now)
            elif freeing:
                self._freed(record, entry.event, before)
            elif isinstance(entry.event, VersionApplied):
                self._applied(record, now)
            self._new_violations(now)
            self._num_seen += 1
            if self._num_seen % self._every == 0:
                self._recount(record, now)

    def note(self, now: float, promise: str, what: str) -> None:
        """Something that is not about one event."""
        self.broken.append(Broken(now, self._num_seen, promise, what))

    def _db(self) -> sqlite3.Connection:
        return self.view.db

    def _new_violations(self, now: float) -> None:
        (num,) = self._db().execute("SELECT count(*) FROM audit_violations").fetchone()
        if num == self._num_violations:
            return
        self._num_violations = num
        seen = {(one.sequence, one.what) for one in self.broken}
        for found in self.audit.result().violations:
            if (found.sequence, found.what) not in seen:
                text = f"{found.rule}: {found.what}"
                self.broken.append(Broken(now, found.sequence, found.promise, text))

    def _committed(self, record: Record, event: RoundCommitted, now: float) -> None:
        """θ is the closed form of exactly the merged blocks, each once, by the ledger's weights."""
        if self.view.run().version != event.version:
            return  # void
        for delta in self.view.merged_in(event.round):
            rows = self._db().execute(
                "SELECT epoch, block FROM blocks WHERE delta = ?", (delta.token[0],)
            )
            for epoch, block in rows:
                number = epoch * self._num_blocks + block
                if number in self._merged:
                    what = f"block {epoch}:{block} was merged before"
                    self.broken.append(Broken(now, record.sequence, "P1", what))
                self._merged.add(number)
                self._theta.merge(number, delta.weight or 0.0)
        if self._theta.digest() != event.parameters_digest:
            what = f"version {event.version} is not the sum of exactly the merged blocks"
            self.broken.append(Broken(now, record.sequence, "P1", what))

    def _applied(self, record: Record, now: float) -> None:
        row = self._db().execute("SELECT site, version FROM incarnations WHERE mismatches > 0")
        for site, version in row.fetchall():
            what = f"{site} holds another version {version} than was committed"
            self.broken.append(Broken(now, record.sequence, "P3", what))

    def _undelivered(self) -> dict[tuple[int, int], str]:
        rows = self._db().execute(
            "SELECT epoch, block, state FROM blocks WHERE incarnation IS NOT NULL"
        )
        return {(epoch, block): state for epoch, block, state in rows}

    def _freed(
        self, record: Record, event: Event | None, before: dict[tuple[int, int], str]
    ) -> None:
        """Count what a departure, a reclaim or the run's end took back, started or not."""
        after = self._undelivered()
        lost = [state for key, state in before.items() if key not in after]
        unstarted = lost.count("leased")
        started = len(lost) - unstarted
        self.reclaimed_unstarted += unstarted
        self.reclaimed_started += started
        if not isinstance(event, SiteDeparted):
            return
        row = self._db().execute(
            "SELECT 1 FROM incarnations WHERE departed_seq = ?", (record.sequence,)
        )
        if row.fetchone():
            one = {"site": event.site, "code": event.code}
            self.departures.append({**one, "unstarted": unstarted, "started": started})

    def _recount(self, record: Record, now: float) -> None:
        """The counters of the table against its rows."""
        db = self._db()
        marks = ", ".join("?" * len(OUTSTANDING))
        (outstanding,) = db.execute(
            f"SELECT count(*) FROM blocks WHERE state IN ({marks})", OUTSTANDING
        ).fetchone()
        (merged,) = db.execute("SELECT count(*) FROM blocks WHERE state = 'merged'").fetchone()
        (live,) = db.execute(
            "SELECT count(*) FROM incarnations WHERE state != 'departed'"
        ).fetchone()
        run = self.view.run()
        counted = (outstanding, merged, live)
        kept = (run.outstanding_blocks, run.merged_blocks, run.live)
        if counted != kept:
            what = f"outstanding, merged, live: counted {counted}, kept {kept}"
            self.broken.append(Broken(now, record.sequence, "P1", what))
