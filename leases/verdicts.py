"""What the audit makes of each event: which decisions stand, were overtaken, or break a promise."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from eventlog.codec import Entry, Envelope
from eventlog.events import (
    COORDINATOR,
    OPERATOR,
    SITE,
    CoordinatorElected,
    CoordinatorTick,
    DeltaPublished,
    EpochClosed,
    Event,
    RoundClosed,
    RoundCommitted,
    RunCreated,
    RunFinished,
)
from eventlog.signatures import UNSIGNED
from leases import anchors, duties, merges, rulings, signing, tally
from leases.anchors import violation
from leases.blocks import BlockIndex
from leases.grounds import Finding
from leases.states import is_void
from leases.view import View

# Decisions that another source can overtake, and with what (the module text of `leases.audit`).
_HALTS = frozenset({"run.paused", "run.resumed", "run.stopped"})
OVERTAKABLE: dict[str, frozenset[str]] = {
    "lease.granted": frozenset({"run.paused", "run.stopped"}),
    "lease.reclaimed": frozenset({"block.started", "block.completed", "delta.published"}),
    "lease.stolen": frozenset({"block.started"}),
    "round.opened": _HALTS,
    "run.finished": frozenset({"delta.published"}),
    "run.paused": _HALTS,
    "site.admitted": frozenset({"site.joined"}),
    "site.refused": frozenset({"site.joined"}),
}

# Which promise a void decision of a type breaks, by which rule it is void, and what would hold.
BROKEN: dict[str, tuple[str, str, str]] = {
    "block.quarantined": ("P1", "R14", "a block that is available"),
    "coordinator.elected": ("P1", "R5", "a claim behind the newest event of the subject"),
    "coordinator.tick": ("P1", "R8", "the next tick of the term"),
    "delta.refused": ("P1", "R4", "a delta that is neither merged nor refused"),
    "epoch.closed": ("P1", "R15", "every block of it merged or quarantined"),
    "lease.granted": ("P1", "R2", "blocks that nobody holds, to who lives, while the run does"),
    "lease.reclaimed": ("P1", "R4", "unstarted blocks of it, or all undelivered ones"),
    "lease.stolen": ("P1", "R2", "unstarted blocks of who holds them"),
    "round.closed": ("P4", "R3", "undecided deltas of the open round, in order"),
    "round.committed": ("P1", "R4", "the next version, of the logged cut, once"),
    "round.opened": ("P1", "R13", "the next round, on the newest version, after the last commit"),
    "run.finished": ("P1", "R15", "an end when the target is reached, or a stop was asked for"),
    "site.admitted": ("P4", "R11", "an answer to a waiting join of a site that does not live"),
    "site.departed": ("P4", "R4", "one departure of an incarnation that lives"),
    "site.refused": ("P4", "R11", "an answer to a waiting join"),
    "snapshot.saved": ("P3", "R20", "a snapshot of a committed version"),
}
_BLOCK = re.compile(r"\b\d+:\d+\b")
_UNKNOWN = ("P3", "R1", "a decision that holds")

_TABLES = """
CREATE TABLE audit_void (sequence INTEGER PRIMARY KEY, type TEXT NOT NULL, why TEXT NOT NULL);
CREATE TABLE audit_pen (
    term INTEGER NOT NULL, n INTEGER NOT NULL, id TEXT NOT NULL, last INTEGER NOT NULL,
    folded INTEGER NOT NULL
);
CREATE TABLE audit_spoke (
    subject TEXT NOT NULL, type TEXT NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (subject, type)
) WITHOUT ROWID;
"""

Count = Callable[[sqlite3.Connection, Entry], None]
_MOVES: dict[str, Count] = {
    "site.admitted": tally.admitted,
    "site.departed": tally.departed,
    "lease.granted": tally.granted,
    "lease.stolen": tally.stolen,
    "lease.reclaimed": tally.reclaimed,
    "block.started": tally.started,
    "block.completed": tally.completed,
    "block.quarantined": tally.quarantined,
    "delta.refused": tally.refused,
    "run.finished": tally.finished,
}


def create(db: sqlite3.Connection) -> None:
    """Make the empty tables of the whole audit."""
    for part in (anchors, tally, merges, duties):
        part.create(db)
    anchors.run_statements(db, _TABLES)
    db.execute("INSERT INTO audit_pen VALUES (0, 0, '', 0, 0)")


@dataclass(slots=True)
class Judge:
    """Sees every event after the lease table has folded it. All its memory is in the database,
    but for what it found before the event that is being folded."""

    run: str
    _found: list[Finding] = field(default_factory=list)

    def reads(self, entry: Entry) -> bool:
        """Whether the lease table's rows are read for this event: before it is folded, or behind
        it. A fold that holds rows back has to write them first."""
        event = entry.event
        if entry.record.subject != COORDINATOR or entry.envelope is None or event is None:
            return False
        return type(event) in rulings.RULES or duties.looks(event)

    def weigh(self, db: sqlite3.Connection, entry: Entry) -> None:
        """Look at the state that a decision stands on, before it is folded."""
        self._found = []
        if not self.reads(entry):
            return
        _, _, _, last, folded = db.execute("SELECT * FROM audit_pen").fetchone()
        if last != entry.record.sequence - 1:
            folded = last
        self._found = rulings.weigh(db, entry, folded)

    def see(self, db: sqlite3.Connection, entry: Entry, void: str) -> None:
        """Count an event, and note what promise it breaks, if any."""
        anchors.mark(db, self.run, entry)
        if not is_void(void):
            signing.count(db, entry)
        if void:
            kind = entry.envelope.type if entry.envelope else "?"
            db.execute(
                "INSERT INTO audit_void VALUES (?, ?, ?)", (entry.record.sequence, kind, void)
            )
        if entry.record.subject == COORDINATOR:
            _decision(db, entry, void, self._found)
        else:
            _report(db, entry, void)


def _report(db: sqlite3.Connection, entry: Entry, void: str) -> None:
    """An event of a site, of the operator, or of those who place jobs."""
    record, envelope, event = entry.record, entry.envelope, entry.event
    kind = record.subject.partition(".")[0]
    if envelope is None or event is None or kind not in event.by:
        return
    if envelope.source != record.subject:
        return
    if isinstance(event, DeltaPublished):
        index = _index(db)
        if index is not None and not _known(db, entry):
            tally.published(db, entry, index, void)
    if void:
        return
    db.execute(
        "INSERT INTO audit_spoke VALUES (?, ?, ?) ON CONFLICT (subject, type) DO UPDATE SET "
        "last = excluded.last",
        (record.subject, event.type, record.sequence),
    )
    if kind == SITE:
        anchors.seen(db, record, envelope)
    if isinstance(event, RunCreated):
        anchors.founded(db, event)
    count = _MOVES.get(event.type)
    if count:
        count(db, entry)


def _known(db: sqlite3.Connection, entry: Entry) -> bool:
    """Whether the same event stood before: a message that came twice is one delta."""
    assert entry.envelope is not None
    site = entry.record.subject.partition(".")[2]
    row = db.execute(
        "SELECT 1 FROM audit_deltas WHERE id = ? AND site = ?", (entry.envelope.id, site)
    )
    return row.fetchone() is not None


def _decision(db: sqlite3.Connection, entry: Entry, void: str, found: Sequence[Finding]) -> None:
    """An event on the coordinator's subject: judged as written, unless its term had ended."""
    sequence, envelope, event = entry.record.sequence, entry.envelope, entry.event
    if envelope is None or envelope.source != COORDINATOR:
        why = entry.problem or f"its payload says source {envelope.source if envelope else '?'}"
        what = f"this is no decision of the coordinator: {why}"
        return violation(db, "P4", "R6", sequence, what, "decisions only, on its own subject")
    claims = isinstance(event, CoordinatorElected)
    before = _num_violations(db)
    term, stale = _follow_pen(db, sequence, envelope, claims)
    if stale:
        return
    if event is None:
        advice = "; upgrade atoll" if entry.newer else ""
        what = f"a decision cannot be judged: {entry.problem}{advice}"
        expected = "an event that this version of atoll knows"
        return violation(db, "P3", "R17" if entry.newer else "R6", sequence, what, expected)
    _hold_against_promises(db, entry, void)
    if not is_void(void):
        if isinstance(event, CoordinatorTick):
            found = duties.ticked(db) if duties.looks(event) else []
        for one in found:
            violation(db, one.promise, one.rule, sequence, one.what, *one.concerns())
    moves = _MOVES.get(event.type)
    if moves and (not void or void.startswith("in part")):
        moves(db, entry)
    if not void or _num_violations(db) > before:
        return  # what is wrong has been said more precisely
    if event.type in OVERTAKABLE and _overtaken(db, entry, void):
        return
    promise, rule, expected = BROKEN.get(event.type, _UNKNOWN)
    if void.startswith(UNSIGNED):
        promise, rule, expected = "P3", "R18", "the signature of a key that the operator named"
    if envelope.term != term and not claims:
        promise, rule, expected = "P1", "R5", f"decisions of term {term}"
    what, (site, block) = f"{event.type} is void: {void}", _concerns(event, void)
    violation(db, promise, rule, sequence, what, expected, site, block)


def _concerns(event: Event, void: str) -> tuple[str, str]:
    """The site of a decision, and the first block that the fold's word on it names."""
    named = _BLOCK.search(void)
    block = getattr(event, "block", None)
    one = f"{getattr(event, 'epoch', 0)}:{block}" if isinstance(block, int) else ""
    return str(getattr(event, "site", "")), one or (named[0] if named else "")


def _follow_pen(
    db: sqlite3.Connection, sequence: int, envelope: Envelope, claims: bool
) -> tuple[int, bool]:
    """R5: each decision is the next of its subject and names the one before. (term, whether this
    one is of a term that a newer claim had ended)."""
    term, n, name, last, folded = db.execute("SELECT * FROM audit_pen").fetchone()
    if last != sequence - 1:
        folded = last  # the coordinator had read at least through its previous append
    stale = not claims and envelope.term is not None and envelope.term < term
    if envelope.n == n + 1 and (envelope.previous or "") == name:
        n, name = envelope.n, envelope.id
        term = sequence if claims else term
    elif not stale:
        what = f"decision {envelope.n} names {(envelope.previous or 'none')[:12]} as the one before"
        what += f"; before it stands decision {n}, {name[:12] or 'none'}"
        violation(db, "P1", "R5", sequence, what, f"decision {n + 1} that names {name[:12]}")
    db.execute(
        "UPDATE audit_pen SET term = ?, n = ?, id = ?, last = ?, folded = ?",
        (term, n, name, sequence, folded),
    )
    return term, stale


def _hold_against_promises(db: sqlite3.Connection, entry: Entry, void: str) -> None:
    """Cuts, commits and closes are judged as they were written, void or not."""
    sequence, event = entry.record.sequence, entry.event
    if isinstance(event, RoundClosed):
        merges.closed(db, entry)
    elif isinstance(event, RoundCommitted):
        merges.committed(db, entry)
        anchors.attested(db, sequence, event)
        if not void:
            anchors.stepped(db, sequence, event)
    elif isinstance(event, EpochClosed):
        index = _index(db)
        if index is not None:
            merges.epoch_closed(db, entry, index)
    elif isinstance(event, RunFinished) and not void:
        anchors.attested(db, sequence, event)
        anchors.finished(db, sequence, event)
    elif isinstance(event, CoordinatorTick | CoordinatorElected):
        db.execute("UPDATE audit_pen SET folded = ?", (sequence,))  # stands alone in its append
        if isinstance(event, CoordinatorElected):
            duties.elected(db)


def _overtaken(db: sqlite3.Connection, entry: Entry, void: str) -> bool:
    """Whether the operator or the site concerned said what made the decision void, and said it
    since the coordinator's previous append."""
    event = entry.event
    assert event is not None
    if event.type == "lease.granted" and void.startswith("in part"):
        return False  # R2: only the coordinator makes blocks available, or not
    (folded,) = db.execute("SELECT folded FROM audit_pen").fetchone()
    subjects = {OPERATOR, f"{SITE}.{getattr(event, 'site', '')}"}
    spoke = db.execute("SELECT subject, type FROM audit_spoke WHERE last > ?", (folded,)).fetchall()
    return any(
        kind in OVERTAKABLE[event.type] and (subject in subjects or not getattr(event, "site", ""))
        for subject, kind in spoke
    )


def _index(db: sqlite3.Connection) -> BlockIndex | None:
    view = View(db)
    return view.index() if view.exists() else None


def _num_violations(db: sqlite3.Connection) -> int:
    return cast(int, db.execute("SELECT count(*) FROM audit_violations").fetchone()[0])
