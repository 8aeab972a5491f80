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
    RunCreated,
    SiteJoined,
)
from leases import (
    fold_blocks,
    fold_deltas,
    fold_jobs,
    fold_rounds,
    fold_run,
    fold_sites,
    schema,
)
from leases.books import Books
from leases.pages import SourceRow

Rule = Callable[[Books, Entry], str]
RULES: dict[str, Rule] = {
    **fold_run.RULES,
    **fold_sites.RULES,
    **fold_blocks.RULES,
    **fold_deltas.RULES,
    **fold_rounds.RULES,
    **fold_jobs.RULES,
}


class LeaseTable:
    """The fold. `scope`: see `Books.scope`."""

    name = "leases"
    schema_version = schema.SCHEMA_VERSION

    def __init__(self, scope: str | None = None) -> None:
        self.scope = scope
        self._books: Books | None = None  # open within a transaction

    def create(self, db: sqlite3.Connection) -> None:
        """Make the empty tables."""
        schema.create(db)

    def begin(self, db: sqlite3.Connection) -> None:
        """Open the books; what a transaction that was rolled back left in them is forgotten."""
        self._books = Books(db, self.scope)

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        """Fold one event; '' or why it is void. 'in part: ...' names blocks that were skipped."""
        assert self._books is not None
        return _judge(self._books, entry)

    def finish(self, db: sqlite3.Connection) -> None:
        """Write what the books hold. May be called at any time within a transaction."""
        assert self._books is not None
        self._books.finish()


def _judge(books: Books, entry: Entry) -> str:
    envelope, event, subject = entry.envelope, entry.event, entry.record.subject
    source = books.source(subject)
    source.last_seq = entry.record.sequence  # void or not, the next append must expect it
    if envelope is None:
        return entry.problem
    void = _source(books, subject, envelope) or _numbered(source, envelope)
    if void:
        return void
    if event is None:
        _note_unreadable(books, entry, envelope)
        return entry.problem
    kind, _, site = subject.partition(".")
    if kind not in event.by:
        return f"{event.type} may not come from {subject}"
    created = books.run.name is not None
    if created == (type(event) is RunCreated):
        return "the run exists already" if created else "the run does not exist yet"
    void = _standing(books, entry, envelope, kind, site)
    if void:
        return void
    rule = RULES.get(event.type)
    return rule(books, entry) if rule else ""


def _source(books: Books, subject: str, envelope: Envelope) -> str:
    """R6: the source is the subject; a payload that says otherwise is void."""
    if envelope.source != subject:
        return f"the payload says source {envelope.source}, it stands on {subject}"
    if books.run.name is not None and envelope.run != books.run.name:
        return f"the payload is of run {envelope.run}"
    return ""


def _numbered(source: SourceRow, envelope: Envelope) -> str:
    """R6: a source's counter has no gaps; R5: each decision names the one before."""
    if envelope.n != source.n + 1:
        subject = source.subject
        return f"counter {envelope.n} follows {source.n} on {subject}: a duplicate, or out of order"
    if source.subject == COORDINATOR and (envelope.previous or "") != source.last_id:
        return f"names {envelope.previous!r} as the previous decision, it is {source.last_id!r}"
    source.n, source.last_id = envelope.n, envelope.id
    return ""


def _standing(books: Books, entry: Entry, envelope: Envelope, kind: str, site: str) -> str:
    """Whether the writer may still speak: term (R5), incarnation (P4), end of the run (R15)."""
    run, event, sequence = books.run, entry.event, entry.record.sequence
    if kind == COORDINATOR:
        if envelope.term != run.term and type(event) is not CoordinatorElected:
            return f"decided in term {envelope.term}, the term is {run.term}"
        run.decision_seq, run.decision_id = sequence, envelope.id
    if run.state == "finished":
        return "the run has finished" if kind in (COORDINATOR, SITE) else ""
    if kind != SITE or type(event) is SiteJoined:
        return ""
    live = books.live(envelope.incarnation)
    if live is None or live.site != site:
        return f"incarnation {envelope.incarnation} of {site} does not live here and now"
    live.last_seq, live.last_term, live.last_tick = sequence, run.term, run.term_ticks
    books.writer = live
    return ""


def _note_unreadable(books: Books, entry: Entry, envelope: Envelope) -> None:
    """R17: what a newer coordinator decides may change what is true: look, do not touch. In a term
    that is over it decides nothing (R5)."""
    if not entry.newer or entry.record.subject != COORDINATOR or books.run.read_only:
        return
    if envelope.term == books.run.term or envelope.type == CoordinatorElected.type:
        what = f"sequence {entry.record.sequence}: {entry.problem}; upgrade atoll"
        books.run.read_only = what
