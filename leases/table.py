"""The lease table: one fold of the log for coordinator, hub, view, audit and simulator.

Every event is judged at its own position (R1), first by its envelope here, then by the rule of its
type. The fold never raises on a log: what does not hold is void, with the reason. It tests before
it writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from eventlog.codec import Entry, Envelope
from eventlog.events import (
    COORDINATOR,
    SITE,
    CoordinatorElected,
    Event,
    RunCreated,
    SiteJoined,
)
from leases import fold_blocks, fold_deltas, fold_rounds, fold_run, fold_sites, schema
from leases.books import Books

Rule = Callable[[Books, Entry], str]
RULES: dict[str, Rule] = {
    **fold_run.RULES,
    **fold_sites.RULES,
    **fold_blocks.RULES,
    **fold_deltas.RULES,
    **fold_rounds.RULES,
}


class LeaseTable:
    """The fold. `scope`: see `Books.scope`."""

    name = "leases"
    schema_version = schema.SCHEMA_VERSION

    def __init__(self, scope: str | None = None) -> None:
        self.scope = scope
        self._books: Books | None = None

    def create(self, db: sqlite3.Connection) -> None:
        """Make the empty tables."""
        schema.create(db)

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        """Fold one event; '' or why it is void. 'in part: ...' names blocks that were skipped."""
        if self._books is None or self._books.db is not db:
            self._books = Books(db, self.scope)
        return _judge(self._books, entry)


def _judge(books: Books, entry: Entry) -> str:
    envelope, event = entry.envelope, entry.event
    if envelope is None:
        _note_unreadable(books, entry)
        return _unnumbered(books, entry, entry.problem)
    void = _source(books, entry, envelope) or _numbered(books, entry, envelope)
    if void:
        return _unnumbered(books, entry, void)
    if event is None:
        _note_unreadable(books, entry)
        return entry.problem
    kind = entry.record.subject.partition(".")[0]
    if kind not in event.by:
        return f"{event.type} may not come from {entry.record.subject}"
    created = books.run("created_seq") is not None
    if created == isinstance(event, RunCreated):
        return "the run exists already" if created else "the run does not exist yet"
    void = _standing(books, entry, envelope, event, kind)
    if void:
        return void
    rule = RULES.get(event.type)
    return rule(books, entry) if rule else ""


def _source(books: Books, entry: Entry, envelope: Envelope) -> str:
    """R6: the source is the subject; a payload that says otherwise is void."""
    if envelope.source != entry.record.subject:
        return f"the payload says source {envelope.source}, it stands on {entry.record.subject}"
    name = books.run("name")
    if name is not None and envelope.run != name:
        return f"the payload is of run {envelope.run}"
    return ""


def _numbered(books: Books, entry: Entry, envelope: Envelope) -> str:
    """R6: a source's counter has no gaps; R5: each decision names the one before."""
    subject = entry.record.subject
    n, last_id = books.db.execute(
        "SELECT n, last_id FROM sources WHERE subject = ?", (subject,)
    ).fetchone() or (0, "")
    if envelope.n != n + 1:
        return f"counter {envelope.n} follows {n} on {subject}: a duplicate, or out of order"
    if subject == COORDINATOR and (envelope.previous or "") != last_id:
        return f"names {envelope.previous!r} as the previous decision, it is {last_id!r}"
    books.db.execute(
        "INSERT INTO sources VALUES (?, ?, ?, ?) ON CONFLICT (subject) DO UPDATE SET "
        "n = excluded.n, last_id = excluded.last_id, last_seq = excluded.last_seq",
        (subject, envelope.n, envelope.id, entry.record.sequence),
    )
    return ""


def _unnumbered(books: Books, entry: Entry, void: str) -> str:
    """A void event that took no number still is the newest of its subject: the next append must
    expect it."""
    books.db.execute(
        "INSERT INTO sources VALUES (?, 0, '', ?) ON CONFLICT (subject) DO UPDATE SET "
        "last_seq = excluded.last_seq",
        (entry.record.subject, entry.record.sequence),
    )
    return void


def _standing(books: Books, entry: Entry, envelope: Envelope, event: Event, kind: str) -> str:
    """Whether the writer may still speak: term (R5), incarnation (P4), end of the run (R15)."""
    if kind == COORDINATOR:
        term = books.run("term")
        if not isinstance(event, CoordinatorElected) and envelope.term != term:
            return f"decided in term {envelope.term}, the term is {term}"
        books.db.execute(
            "UPDATE run SET decision_seq = ?, decision_id = ?", (entry.record.sequence, envelope.id)
        )
    if books.run("state") == "finished":
        return "the run has finished" if kind in (COORDINATOR, SITE) else ""
    if kind != SITE:
        return ""
    site = entry.record.subject.partition(".")[2]
    if isinstance(event, SiteJoined):
        return ""
    live = books.live(envelope.incarnation)
    if live is None or live[0] != site:
        return f"incarnation {envelope.incarnation} of {site} does not live here and now"
    assert envelope.incarnation is not None
    books.db.execute(
        "UPDATE incarnations SET last_seq = ?, last_term = run.term, last_tick = run.term_ticks "
        "FROM run WHERE incarnations.seq = ?",
        (entry.record.sequence, envelope.incarnation[0]),
    )
    return ""


def _note_unreadable(books: Books, entry: Entry) -> None:
    """R17: what a newer coordinator decides may change what is true: look, do not touch. In a term
    that is over it decides nothing (R5)."""
    envelope = entry.envelope
    if envelope is None or not entry.newer or entry.record.subject != COORDINATOR:
        return
    if envelope.term == books.run("term") or envelope.type == CoordinatorElected.type:
        books.db.execute(
            "UPDATE run SET read_only = ? WHERE read_only = ''",
            (f"sequence {entry.record.sequence}: {entry.problem}; upgrade atoll",),
        )
