"""P3: what the log says of itself, recomputed: digests, versions, and how far it is attested.

What a lone file can and cannot prove. Each `RoundCommitted` carries the digest of the whole log
through a sequence, so no byte up to there can have changed since, unless somebody wrote the
commit anew as well; and whoever noted a digest elsewhere can tell even that. Each event of a site
names the last decision it had folded, by sequence and id: that this decision stood there was seen
by somebody else than its writer. Behind the newest of both, the events may be all there were or
not, and may be others than there were: a file cannot say. That place is `anchored_through`.
"""

from __future__ import annotations

import sqlite3

from eventlog.chain import Record, extend, start
from eventlog.codec import Entry, Envelope
from eventlog.events import COORDINATOR, RoundCommitted, RunCreated, RunFinished
from eventlog.signatures import Anchor

_TABLES = """
CREATE TABLE audit_violations (
    promise TEXT NOT NULL, rule TEXT NOT NULL, sequence INTEGER NOT NULL, what TEXT NOT NULL,
    expected TEXT NOT NULL, site TEXT NOT NULL, block TEXT NOT NULL
);
CREATE TABLE audit_marks (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, decision INTEGER NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE audit_anchor (through INTEGER NOT NULL);
CREATE TABLE audit_signed (num INTEGER NOT NULL);
CREATE TABLE audit_model (
    version INTEGER NOT NULL, tokens INTEGER NOT NULL, parameters TEXT, momentum TEXT, residual TEXT
);
"""


def create(db: sqlite3.Connection) -> None:
    """Make the empty tables."""
    run_statements(db, _TABLES)
    db.execute("INSERT INTO audit_anchor VALUES (0)")
    db.execute("INSERT INTO audit_signed VALUES (0)")
    db.execute("INSERT INTO audit_model VALUES (0, 0, NULL, NULL, NULL)")


def run_statements(db: sqlite3.Connection, tables: str) -> None:
    """Execute CREATE statements within the caller's transaction (`executescript` would commit)."""
    for statement in tables.split(";"):
        if statement.strip():
            db.execute(statement)


def violation(
    db: sqlite3.Connection,
    promise: str,
    rule: str,
    sequence: int,
    what: str,
    expected: str = "",
    site: str = "",
    block: str = "",
) -> None:
    """Note that a promise is broken: by what, what should have been, and whom it concerns."""
    row = (promise, rule, sequence, what, expected, site, block)
    db.execute("INSERT INTO audit_violations VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def mark(db: sqlite3.Connection, run: str, entry: Entry) -> None:
    """Remember id and running digest of every record; later ones are held against it."""
    record = entry.record
    row = db.execute("SELECT digest FROM audit_marks WHERE seq = ?", (record.sequence - 1,))
    before = (row.fetchone() or (start(run),))[0]
    name = entry.envelope.id if entry.envelope else ""
    is_decision = int(record.subject == COORDINATOR)
    db.execute(
        "INSERT INTO audit_marks VALUES (?, ?, ?, ?)",
        (record.sequence, name, is_decision, extend(before, record)),
    )


def seen(db: sqlite3.Connection, record: Record, envelope: Envelope) -> None:
    """R18: the decision that a site had folded must stand where the site saw it."""
    if envelope.seen is None:
        return
    sequence, name = envelope.seen
    row = db.execute("SELECT id, decision FROM audit_marks WHERE seq = ?", (sequence,)).fetchone()
    if sequence >= record.sequence or row != (name, 1):
        what = (
            f"{record.subject} had folded decision {name[:12]} at {sequence}, which does not stand "
            "there: the log was rewritten, or the site errs"
        )
        site = record.subject.partition(".")[2]
        expected = "that decision where the site saw it"
        return violation(db, "P3", "R18", record.sequence, what, expected, site)
    _anchor(db, sequence)


def attested(db: sqlite3.Connection, sequence: int, event: RoundCommitted | RunFinished) -> None:
    """R18: the digest that a commit, or the run's end, carries must be the log's own."""
    if event.through is None:
        return  # an end that was written before they had one
    row = db.execute("SELECT digest FROM audit_marks WHERE seq = ?", (event.through,)).fetchone()
    if event.through >= sequence or row is None or row[0].hex() != event.log_digest:
        whose = f"round {event.round}" if isinstance(event, RoundCommitted) else "the run's end"
        found = row[0].hex()[:16] if row and event.through < sequence else "not known by then"
        what = (
            f"{whose} says that the log through {event.through} has digest "
            f"{(event.log_digest or 'none')[:16]}, it is {found}"
        )
        return violation(db, "P3", "R18", sequence, what, "the log's own digest")
    _anchor(db, event.through)


def held_against(db: sqlite3.Connection, run: str, anchor: Anchor) -> bool:
    """R18: what was published of this run must be what this log holds. Whether it is."""
    sequence, what, expected = _otherwise(db, run, anchor)
    if what:
        violation(db, "P3", "R18", sequence, what, expected)
    else:
        _anchor(db, anchor.through)
    return not what


def _otherwise(db: sqlite3.Connection, run: str, anchor: Anchor) -> tuple[int, str, str]:
    """Where and how the log is not what was published of it ('': it is), and what was expected."""
    expected = f"D({anchor.through}) = {anchor.log_digest[:16]}, as it was published"
    if anchor.run != run:
        return 0, f"the anchor is of run {anchor.run}, the log of run {run}", expected
    row = db.execute("SELECT digest FROM audit_marks WHERE seq = ?", (anchor.through,)).fetchone()
    if row is None:
        what = f"the log ends before {anchor.through}, which was published of it"
        return anchor.through, what, expected
    if row[0].hex() != anchor.log_digest:
        what = f"the log through {anchor.through} has digest {row[0].hex()[:16]}: it was rewritten"
        return anchor.through, what, expected
    known = db.execute(
        "SELECT 1 FROM named_keys WHERE subject = ? AND key = ?", (COORDINATOR, anchor.key)
    )
    if anchor.key and known.fetchone() is None:
        what = f"the anchor is signed by {anchor.key}, which the log does not name"
        return anchor.through, what, "a key that the operator named"
    return anchor.through, "", expected


def founded(db: sqlite3.Connection, event: RunCreated) -> None:
    """Version 0 is what the run was created with."""
    db.execute("UPDATE audit_model SET parameters = ?", (event.parameters_digest,))


def stepped(db: sqlite3.Connection, sequence: int, event: RoundCommitted) -> None:
    """Versions step by one."""
    (version,) = db.execute("SELECT version FROM audit_model").fetchone()
    if event.version != version + 1:
        what = f"version {event.version} follows version {version}"
        violation(db, "P3", "R13", sequence, what, f"version {version + 1}")
    db.execute(
        "UPDATE audit_model SET version = ?, tokens = tokens + ?, parameters = ?, momentum = ?, "
        "residual = ?",
        (
            event.version,
            event.tokens,
            event.parameters_digest,
            event.momentum_digest,
            event.residual_digest,
        ),
    )


def finished(db: sqlite3.Connection, sequence: int, event: RunFinished) -> None:
    """R15: the end names the last committed version. Momentum and residual of version 0 are zeros
    of the model's shapes, which the log does not hold; they are not judged."""
    row = db.execute("SELECT * FROM audit_model").fetchone()
    said = (
        event.version,
        event.tokens,
        event.parameters_digest,
        event.momentum_digest,
        event.residual_digest,
    )
    names = ("version", "tokens", "parameters", "momentum", "residual")
    for name, claimed, known in zip(names, said, row, strict=True):
        if known is not None and claimed != known:
            what = f"the run ends with {name} {str(claimed)[:16]}, committed are {str(known)[:16]}"
            violation(db, "P3", "R15", sequence, what, f"{name} {str(known)[:16]}")


def _anchor(db: sqlite3.Connection, sequence: int) -> None:
    db.execute("UPDATE audit_anchor SET through = max(through, ?)", (sequence,))
