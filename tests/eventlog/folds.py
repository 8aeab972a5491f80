"""Small folds for tests of the projector, and the history they fold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from eventlog.chain import Record, extend, start
from eventlog.codec import Entry
from eventlog.projector import Position, Projection
from tests.contract.events import tick


class Seen:
    """Notes every event's sequence and subject, and how many there are, in two tables."""

    name = "seen"
    schema_version = 1
    bug_at = 0  # the sequence at which this fold raises, after it has written

    def create(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE seen (sequence INTEGER PRIMARY KEY, subject TEXT, type TEXT)")
        db.execute("CREATE TABLE total (number INTEGER)")
        db.execute("INSERT INTO total VALUES (0)")

    def begin(self, db: sqlite3.Connection) -> None: ...

    def finish(self, db: sqlite3.Connection) -> None: ...

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        record, kind = entry.record, entry.event.type if entry.event else ""
        db.execute("INSERT INTO seen VALUES (?, ?, ?)", (record.sequence, record.subject, kind))
        db.execute("UPDATE total SET number = number + 1")
        if record.sequence == self.bug_at:
            raise RuntimeError("a bug in the fold")
        return entry.problem


class Odd:
    """Voids every event of an odd sequence; has nothing to keep."""

    name = "odd"
    schema_version = 1

    def create(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE odd (sequence)")

    def begin(self, db: sqlite3.Connection) -> None: ...

    def finish(self, db: sqlite3.Connection) -> None: ...

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        return "odd" if entry.record.sequence % 2 else ""


def history(num_events: int, first: int = 1) -> list[Record]:
    return [
        Record(number, "coordinator", number, tick(number, f"e{number}"))
        for number in range(first, first + num_events)
    ]


def rows(projection: Projection) -> list[int]:
    """Sequences folded; checks that the counter in the other table agrees."""
    found = [row[0] for row in projection.db.execute("SELECT sequence FROM seen ORDER BY 1")]
    assert projection.db.execute("SELECT number FROM total").fetchall() == [(len(found),)]
    return found


def placed(records: Sequence[Record]) -> Position:
    """The position behind these records, from the definition of the chain."""
    digest = start("r")
    for record in records:
        digest = extend(digest, record)
    return Position(records[-1].sequence, records[-1].digest(), digest.hex())
