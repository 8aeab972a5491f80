"""The audit: a whole log folded once more, counted independently, and held against its promises.

Two pairs of eyes look at every event. The lease table, the one fold that everybody uses, says what
is void (R1). `tally`, `merges` and `anchors` recompute from the events alone what the promises are
about: P1 how often each block was merged, P3 digests and versions, P4 who held the lease, P5 the
weights. No torch, no clock, no network: memory is SQLite's, in a file where one is given.

What is a violation and what is merely void:

- An event of a site, an agent or an operator may be void. Zombies, duplicates, late and overtaken
  messages are normal, and the fold is there to make them harmless: `void` lists them, with reasons.
  A version that a site holds with another digest than the committed one (P3) is among them: it is
  caught where it is reported, and counts for nothing.
- A decision of a term that a newer claim had ended by then is void by design (R5).
- A decision may be overtaken: what it rests on was true when it was made, and another source
  changed it before it stood (a grant behind a pause, a steal behind a start). Only some types can
  be (`OVERTAKABLE`), only by the operator or the site concerned, and only between the
  coordinator's previous append and this one. It has no effect, and the coordinator decides again.
- Any other decision that is void, or cannot be read, breaks a promise: the coordinator folds the
  whole log before it decides, so it must have known better.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from eventlog.chain import Record
from eventlog.codec import Entry
from eventlog.errors import LogDamaged
from eventlog.projector import Projection
from eventlog.signatures import Anchor
from leases import anchors, verdicts
from leases.anchors import violation
from leases.evaluators import evaluations
from leases.findings import Departure, EpochCount, Findings, Refusal, Share, Violation, Void
from leases.forks import lineage
from leases.life import Life
from leases.overhead import Overhead
from leases.table import LeaseTable
from leases.verdicts import Judge
from leases.view import View

Witness = Callable[[Entry, str], None]  # sees each event with the fold's word on it, in order


class _Both:
    """The lease table and the judge of its verdicts as one fold."""

    name = "audit"
    schema_version = 1

    def __init__(self, run: str, life: Life | None, witness: Witness | None) -> None:
        self._table, self._judge, self._life = LeaseTable(), Judge(run), life
        self._witness = witness
        self.overhead = Overhead()

    def create(self, db: sqlite3.Connection) -> None:
        self._table.create(db)
        verdicts.create(db)

    def begin(self, db: sqlite3.Connection) -> None:
        self._table.begin(db)

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        """What the table holds back is written wherever the judge, or a life, reads its rows."""
        before = self._life.look(db) if self._life else ""
        reads = self._judge.reads(entry)
        if reads:
            self._table.finish(db)
        self._judge.weigh(db, entry)
        void = self._table.apply(db, entry)
        if reads or self._life:
            self._table.finish(db)
        self._judge.see(db, entry, void)
        self.overhead.see(entry, void)
        if self._life:
            self._life.note(db, entry, void, before)
        if self._witness:
            self._witness(entry, void)
        return void

    def finish(self, db: sqlite3.Connection) -> None:
        self._table.finish(db)


class Audit:
    """Audits one log, fed in order from sequence 1 in batches of any size.

    path: a database that no other process uses, for logs larger than memory, or ":memory:".
    life: a block whose every event is to be kept. witness: is told of every event, for whoever
    tells more of a log than the audit does. The same log gives the same findings, however it is
    cut into batches.
    """

    def __init__(
        self,
        run: str,
        path: Path | str = ":memory:",
        life: Life | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._both = _Both(run, life, witness)
        self._projection = Projection(path, [self._both], run)
        self._published: int | None = None
        self.damaged = False  # by what happened to the log, not by what it says
        self.view = View(self._projection.db)

    def feed(self, records: Sequence[Record]) -> None:
        """Judge the next records. A gap or a repeated sequence is a violation (R19), and nothing
        behind it is judged."""
        if self.damaged:
            return
        try:
            self._projection.replay(records)
        except LogDamaged as error:
            self.damage(error)

    def damage(self, error: LogDamaged, rule: str = "R19") -> None:
        """The log is not what was written from `error.sequence` on: the findings end before it."""
        self.damaged = True
        db = self._projection.db
        violation(db, "P3", rule, error.sequence, error.what, "the log as it was written")

    def judge(self, record: Record) -> tuple[Entry, str]:
        """Feed the next event; what it is, and '' or why it is void. Raises LogDamaged."""
        [(entry, voids)] = self._projection.apply([record])
        return entry, voids[0]

    def hold_against(self, anchor: Anchor) -> None:
        """R18: hold the log as far as it was fed against what somebody published of it."""
        if anchors.held_against(self._projection.db, self._projection.run, anchor):
            self._published = anchor.through

    @property
    def position(self) -> int:
        """The last sequence that was fed."""
        return self._projection.position.sequence

    @property
    def anchored_through(self) -> int:
        """The largest sequence that a later event attests (`leases.anchors`)."""
        return int(self._value("SELECT through FROM audit_anchor"))

    def result(self) -> Findings:
        """Everything found so far. May be asked at any time."""
        position, run = self._projection.position, self.view.run()
        versions = self.view.versions(after=max(0, run.version - 1))
        epochs = self._epochs()
        return Findings(
            run=self._projection.run,
            events=position.sequence,
            last_sequence=position.sequence,
            anchored_through=self.anchored_through,
            versions=run.version,
            epochs=epochs,
            blocks_granted=self._total("granted"),
            blocks_reclaimed=self._total("reclaimed"),
            blocks_stolen=self._total("stolen"),
            violations=self._violations(),
            void=[Void(*row) for row in self._rows("SELECT * FROM audit_void ORDER BY sequence")],
            shares=self._shares(),
            departures=[
                Departure(*row) for row in self._rows("SELECT * FROM audit_departures ORDER BY seq")
            ],
            overheads=sorted(self._both.overhead.sites.values(), key=lambda one: one.site),
            evaluations=evaluations(self.view),
            lineage=lineage(self.view),
            manifest_digest=self.view.manifest_digest() if self.view.exists() else None,
            num_parameters=run.num_parameters or 0,
            log_digest=position.log_digest,
            signatures=int(self._value("SELECT num FROM audit_signed")),
            published=self._published,
            model_digest=versions[-1].parameters_digest if versions else run.initial_digest,
        )

    def refusals(self) -> list[Refusal]:
        """Refused deltas whose cause the log cannot show: for a deep audit."""
        rows = self._rows(
            "SELECT d.seq, d.code, b.norm FROM audit_deltas d LEFT JOIN audit_bounds b "
            "ON b.delta = d.seq WHERE d.code IN ('blob', 'form', 'nonfinite', 'outlier') "
            "ORDER BY d.seq"
        )
        return [Refusal(*row) for row in rows]

    def close(self) -> None:
        """Close the database."""
        self._projection.close()

    def _violations(self) -> list[Violation]:
        columns = "promise, rule, sequence, what, expected, site, block"
        rows = self._rows(f"SELECT {columns} FROM audit_violations ORDER BY sequence, rowid")
        return [Violation(*row) for row in rows] or self._disagreements()

    def _disagreements(self) -> list[Violation]:
        """Where nothing else is wrong, the two counts must be equal, or one of them errs."""
        last, found = self._projection.position.sequence, []
        counted = {epoch.epoch: epoch for epoch in self._epochs()}
        for row in self.view.epochs():
            one = counted[row["epoch"]]
            ours = self._rows(
                "SELECT granted, reclaimed, stolen FROM audit_epochs WHERE epoch = ?", one.epoch
            ) or [(0, 0, 0)]
            mine = (one.merged, one.quarantined, *ours[0])
            names = ("merged", "quarantined", "granted", "reclaimed", "stolen")
            theirs = tuple(row[name] for name in names)
            if mine != theirs:
                what = f"epoch {one.epoch}: counted {names} are {mine}, in the lease table {theirs}"
                found.append(Violation("P1", "R1", last, what, "equal counts"))
        return found

    def _epochs(self) -> list[EpochCount]:
        if not self.view.exists():
            return []
        num_blocks = self.view.index().num_blocks
        known = self._rows(
            "SELECT epoch FROM epochs UNION SELECT epoch FROM audit_merged "
            "UNION SELECT epoch FROM audit_closed ORDER BY epoch"
        )
        return [self._epoch(epoch, num_blocks) for (epoch,) in known]

    def _epoch(self, epoch: int, num_blocks: int) -> EpochCount:
        merged, duplicated = self._rows(
            "SELECT count(*), coalesce(sum(times > 1), 0) FROM audit_merged WHERE epoch = ?", epoch
        )[0]
        quarantined = self._value("SELECT count(*) FROM audit_quarantined WHERE epoch = ?", epoch)
        reclaimed = self._value(
            "SELECT coalesce(sum(reclaimed), 0) FROM audit_epochs WHERE epoch = ?", epoch
        )
        closed = bool(self._rows("SELECT 1 FROM audit_closed WHERE epoch = ?", epoch))
        rest = max(0, num_blocks - merged - quarantined)
        return EpochCount(
            epoch=epoch,
            blocks=num_blocks,
            merged=merged,
            open=0 if closed else rest,
            duplicated=duplicated,
            lost=rest if closed else 0,
            quarantined=quarantined,
            reclaimed=reclaimed,
            closed=closed,
        )

    def _shares(self) -> list[Share]:
        sites: dict[str, dict[str, int]] = {}
        for site, what, num in self._rows("SELECT * FROM audit_shares ORDER BY site, what"):
            sites.setdefault(site, {})[what] = num
        prefix = "reclaimed: "
        return [
            Share(
                site,
                counts.get("granted", 0),
                counts.get("merged", 0),
                counts.get("stolen", 0),
                {k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)},
                counts.get("unstarted", 0),
                counts.get("started", 0),
            )
            for site, counts in sites.items()
        ]

    def _total(self, column: str) -> int:
        return int(self._value(f"SELECT coalesce(sum({column}), 0) FROM audit_epochs"))

    def _value(self, sql: str, *arguments: object) -> int:
        return int(self._rows(sql, *arguments)[0][0])

    def _rows(self, sql: str, *arguments: object) -> list[tuple]:  # type: ignore[type-arg]
        return self._projection.db.execute(sql, arguments).fetchall()
