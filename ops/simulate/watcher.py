"""Looks at every event at the moment it stands, and holds the run against what it promises.

Three pairs of eyes: the audit judges the log (P1, P3, P4, P5, R1 to R19); the referee and its
ledger (`ops.simulate.referee`) know without the fold who may say what and who holds what; and θ of
every committed version must be the closed form of exactly the blocks that the ledger says are
merged, with the weights it gives them. After each event the lease table's counters must be the
ledger's;
every so often, and at the end, its rows.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import RoundCommitted, Token
from leases.audit import Audit
from leases.states import OUTSTANDING
from ops.simulate.referee import Referee
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
    """`size`, `num_blocks`: of the virtual model (`sitehub.rehearsal`). `every`: all rows of the
    table are compared after so many events. `speaks`, `spoiled`, `snapshot_s`: see `Lives`."""

    def __init__(
        self,
        run: str,
        size: int,
        num_blocks: int,
        every: int,
        speaks: Callable[[Token, float], bool],
        spoiled: Mapping[str, str],
        snapshot_s: float,
    ) -> None:
        self.audit = Audit(run)
        self.view = self.audit.view
        self.referee = Referee(self._fault, speaks, spoiled, snapshot_s)
        self.broken: list[Broken] = []
        self.events: deque[str] = deque(maxlen=KEPT)
        self._num_blocks, self._every = num_blocks, every
        self._theta = ClosedForm(size)
        self._num_seen = self._num_violations = 0
        self._now = 0.0

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return self.referee.state == "finished"

    def see(self, records: list[Record], now: float, say: Callable[[str], None]) -> None:
        """Judge the events of an append that has just been stored."""
        self._now = now
        if self.broken:
            return
        self.referee.begin_append()
        for record in records:
            try:
                entry, void = self.audit.judge(record)
            except sqlite3.IntegrityError as error:  # the rule that should have come before it
                self.referee.see(decode(record), "", now)
                return self._fault(
                    "P1", "R1", f"the lease table refuses {record.sequence}: {error}"
                )
            self._num_seen = record.sequence
            kind = entry.envelope.type if entry.envelope else "?"
            line = f"{now:9.3f} s  {record.sequence:5d} {record.subject:14s} {kind}"
            why = f"void: {void}" if void else getattr(entry.event, "reason", "")
            self.events.append(f"{line} {why}"[:200])
            say(self.events[-1])
            self.referee.see(entry, void, now)
            if isinstance(entry.event, RoundCommitted) and not void:
                self._committed(entry.event)
            self._new_violations(now)
            self._compare_counts()
            if record.sequence % self._every == 0:
                self.compare_rows()

    def note(self, now: float, promise: str, what: str) -> None:
        """Something that is not about one event."""
        self.broken.append(Broken(now, self._num_seen, promise, what))

    def _fault(self, promise: str, rule: str, what: str) -> None:
        self.note(self._now, promise, f"{rule}: {what}")

    def _new_violations(self, now: float) -> None:
        (num,) = self.view.db.execute("SELECT count(*) FROM audit_violations").fetchone()
        if num == self._num_violations:
            return
        self._num_violations = num
        seen = {(one.sequence, one.what) for one in self.broken}
        for found in self.audit.result().violations:
            if (found.sequence, found.what) not in seen:
                text = f"{found.rule}: {found.what}"
                self.broken.append(Broken(now, found.sequence, found.promise, text))

    def _committed(self, event: RoundCommitted) -> None:
        """θ is the closed form of exactly the merged blocks, each once, by the ledger's weights."""
        for (epoch, block), weight in self.referee.committed(event):
            self._theta.merge(epoch * self._num_blocks + block, weight)
        if self._theta.digest() != event.parameters_digest:
            what = f"version {event.version} is not the sum of exactly the merged blocks"
            self._fault("P1", "R12", what)

    def _compare_counts(self) -> None:
        """The lease table's counters are the ledger's."""
        if self.referee.state == "none":
            return
        run, ledger = self.view.run(), self.referee.ledger
        kept = (run.outstanding_blocks, run.outstanding_tokens, run.merged_blocks,
                run.merged_tokens, run.version, run.live, run.term, run.ticks)  # fmt: skip
        counted = (len(ledger.held), ledger.outstanding_tokens, len(ledger.merged),
                   ledger.merged_tokens, ledger.version, len(self.referee.lives),
                   self.referee.term, self.referee.ticks)  # fmt: skip
        if counted != kept:
            names = "outstanding blocks, tokens, merged blocks, tokens, version, live, term, ticks"
            self._fault("P1", "R1", f"{names}: counted {counted}, kept {kept}")

    def compare_rows(self) -> None:
        """The lease table's rows are the ledger's: who holds what, and what is merged."""
        if self.referee.state == "none":
            return
        db, ledger = self.view.db, self.referee.ledger
        marks = ", ".join("?" * len(OUTSTANDING))
        rows = db.execute(
            f"SELECT epoch, block, state, lease FROM blocks WHERE state IN ({marks})", OUTSTANDING
        ).fetchall()
        kept = {(epoch, block): (state, lease) for epoch, block, state, lease in rows}
        counted = {key: (OUTSTANDING[one.phase], one.lease[0]) for key, one in ledger.held.items()}
        for key in sorted(kept.keys() | counted.keys()):
            if kept.get(key) != counted.get(key):
                what = f"block {key}: counted {counted.get(key)}, kept {kept.get(key)}"
                return self._fault("P1", "R1", what)
        for state, ours in (("merged", ledger.merged), ("quarantined", ledger.quarantined)):
            (num,) = db.execute("SELECT count(*) FROM blocks WHERE state = ?", (state,)).fetchone()
            if num != len(ours):
                self._fault("P1", "R1", f"{state}: counted {len(ours)}, kept {num}")
