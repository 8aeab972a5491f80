"""Rows that a transaction holds back: the tables are what they would be had each event written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from eventlog.codec import Entry
from eventlog.projector import Projection
from leases.pages import BLOCKS, SOURCES, BlockRow, Pages, SourceRow
from leases.schema import create, table_digest
from leases.table import LeaseTable
from tests.leases.test_properties import folded, played, records
from tests.support.histories import ANY, histories
from tests.support.scenario import RUN, Scenario

SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


class Eager(LeaseTable):
    """Writes behind every event, and reads everything anew for the next."""

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        said = super().apply(db, entry)
        self.finish(db)
        self.begin(db)
        return said


@SETTINGS
@given(histories(ANY))
def test_p3_what_is_held_back_gives_the_table_that_writing_each_event_gives(steps: list) -> None:
    log = records(played(steps))
    with Projection(":memory:", [Eager()], RUN) as eager:
        said = eager.apply(log)
        digest = table_digest(eager.db)
    assert folded(log, [len(log)]) == digest
    with Projection(":memory:", [LeaseTable()], RUN) as held:
        assert [voids for _, voids in held.apply(log)] == [voids for _, voids in said]


def test_p3_rows_of_a_transaction_that_was_rolled_back_are_forgotten(tmp_path: Path) -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=3, b=3)
    run.grant("a", 0, 1)
    run.train("a", 0)
    log, table = records(run), LeaseTable()
    with Projection(tmp_path / "torn.sqlite", [table, Fails(at=len(log))], RUN) as projection:
        projection.apply(log[:3])
        before = table_digest(projection.db)
        with pytest.raises(RuntimeError):
            projection.apply(log[3:])
        assert table_digest(projection.db) == before
        projection.apply(log[3:])
        assert table_digest(projection.db) == table_digest(run.projection.db)


class Fails:
    """A second fold with a bug that shows once."""

    name, schema_version = "fails", 1

    def __init__(self, at: int) -> None:
        self.at = at

    def create(self, db: object) -> None: ...

    def begin(self, db: object) -> None: ...

    def apply(self, db: object, entry: Entry) -> str:
        if entry.record.sequence == self.at:
            self.at = 0
            raise RuntimeError
        return ""

    def finish(self, db: object) -> None: ...


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    create(db)
    yield db
    db.close()


def test_a_row_is_one_object_however_it_is_asked_for(db: sqlite3.Connection) -> None:
    blocks = Pages(db, BLOCKS)
    row = blocks.add(BlockRow(0, 5, "leased", incarnation=9))
    assert blocks.get((0, 5)) is row
    assert blocks.find("incarnation = ?", 9) == [row]
    assert blocks.find("incarnation = ?", 9)[0] is row
    assert blocks.get((0, 6)) is None


def test_a_change_is_seen_by_the_next_question_and_written_by_flush(db: sqlite3.Connection) -> None:
    blocks = Pages(db, BLOCKS)
    blocks.add(BlockRow(0, 5, "leased", incarnation=9))
    blocks.flush()
    row = blocks.get((0, 5))
    assert row is not None
    row.incarnation = 8
    assert blocks.find("incarnation = ?", 9) == []
    assert blocks.find("incarnation = ?", 8) == [row]
    row.state = "training"
    blocks.flush()
    assert db.execute("SELECT state, incarnation FROM blocks").fetchall() == [("training", 8)]


def test_a_row_that_was_missing_is_there_once_it_is_added(db: sqlite3.Connection) -> None:
    sources = Pages(db, SOURCES)
    assert sources.get("operator") is None
    row = sources.add(SourceRow("operator", 1, "e1", 4))
    assert sources.get("operator") is row
    sources.flush()
    again = Pages(db, SOURCES)
    assert again.get("operator") == row


def test_a_row_that_was_only_looked_at_is_not_written(db: sqlite3.Connection) -> None:
    first = Pages(db, SOURCES)
    first.add(SourceRow("operator", 1, "e1", 4))
    first.flush()
    before, again = db.total_changes, Pages(db, SOURCES)
    again.known("operator")
    again.flush()
    assert db.total_changes == before
    row = again.known("operator")
    row.n = 2
    again.flush()
    row = again.known("operator")
    row.n = 1  # back to what the table had, but not to what it has
    again.flush()
    assert db.total_changes == before + 2
    assert db.execute("SELECT n FROM sources").fetchall() == [(1,)]
