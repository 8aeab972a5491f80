"""Rows that a transaction works on: read once, changed in memory, written when it ends.

A site's row changes with each of its events, a block's several times within a batch. SQLite sees
each of them once a transaction, however many events that folds. The table still is SQLite's: rows
live here from their first use to the end of the transaction, never longer, so memory grows with the
batch and not with the epoch. A query over many rows writes the table's changes first (`find`). Who
was only looked at is not written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

K = TypeVar("K")
R = TypeVar("R")


@dataclass(slots=True)
class RunRow:
    """What of the run's own row changes as it goes; its founding is written at once."""

    name: str | None  # None before RunCreated
    state: str
    reason: str
    read_only: str
    term: int
    holder: str
    term_ticks: int
    ticks: int
    decision_seq: int
    decision_id: str
    round: int
    version: int
    merged_tokens: int
    merged_blocks: int
    outstanding_tokens: int
    outstanding_blocks: int
    live: int
    finished_seq: int | None
    resumed_version: int  # at which it was resumed last: what was before is no divergence now


@dataclass(slots=True)
class SourceRow:
    """Where a writer's pen stands (R6)."""

    subject: str
    n: int = 0
    last_id: str = ""
    last_seq: int = 0


@dataclass(slots=True)
class LifeRow:
    """An incarnation; the columns of its table. `starts_from`: the newest version that had a
    snapshot when it was admitted; 0: none had."""

    seq: int
    id: str
    site: str
    join_seq: int
    state: str = "live"
    hardware: bytes = b""
    code: str = ""
    reason: str = ""
    drain: int = 0
    last_seq: int = 0
    last_term: int = 0
    last_tick: int = 0
    version: int | None = None
    mismatches: int = 0
    phase: str = "starting"
    step: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    walltime_left_s: float | None = None
    loss: float | None = None
    stall_s: float = 0.0
    merged_blocks: int = 0
    merged_tokens: int = 0
    refusals: int = 0
    departed_seq: int | None = None
    progress_term: int = 0
    progress_tick: int = 0
    step_s: float = 0.0
    backoff_until: int = 0
    missing: str | None = None
    starts_from: int = 0


@dataclass(slots=True)
class EpochRow:
    """An epoch's counts. `cursor`: the first position of its order that was never touched."""

    epoch: int
    blocks: int
    cursor: int = 0
    freed: int = 0
    granted: int = 0
    outstanding: int = 0
    merged: int = 0
    quarantined: int = 0
    reclaimed: int = 0
    stolen: int = 0
    refused: int = 0
    merged_tokens: int = 0
    closed_seq: int | None = None


@dataclass(slots=True)
class LeaseRow:
    """A lease: the `LeaseGranted` at `seq`."""

    seq: int
    id: str
    incarnation: int


@dataclass(slots=True)
class BlockRow:
    """A touched block: who holds it, under which lease or in which delta."""

    epoch: int
    block: int
    state: str
    lease: int | None = None
    incarnation: int | None = None
    delta: int | None = None
    grants: int = 0


class Layout(Generic[K, R]):
    """A table as `kind` describes it: its columns are the fields, the first ones its key."""

    def __init__(self, table: str, kind: Callable[..., R], num_keys: int = 1) -> None:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        keys, others = names[:num_keys], names[num_keys:]
        columns, marks = ", ".join(names), ", ".join("?" * len(names))
        updates = ", ".join(f"{name} = excluded.{name}" for name in others)
        self.kind, self.num_keys = kind, num_keys
        self.key_of: Callable[[R], Any] = attrgetter(*keys)
        self.values: Callable[[R], tuple[Any, ...]] = attrgetter(*names)
        self.select = f"SELECT {columns} FROM {table} WHERE "
        self.one = self.select + " AND ".join(f"{key} = ?" for key in keys)
        self.order = f" ORDER BY {', '.join(keys)}"
        self.write = (
            f"INSERT INTO {table} ({columns}) VALUES ({marks}) "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}"
        )


class Pages(Generic[K, R]):
    """The rows of one table that the transaction has touched. A row that was handed out may be
    changed until the table's next `find` or `flush`, which write it."""

    __slots__ = ("_db", "_layout", "_out", "_rows", "_stored")

    def __init__(self, db: sqlite3.Connection, layout: Layout[K, R]) -> None:
        self._db, self._layout = db, layout
        self._rows: dict[K, R | None] = {}  # None: looked for, and not there
        self._out: dict[K, R] = {}  # handed out since they were last written
        self._stored: dict[K, tuple[Any, ...]] = {}  # as the table has them

    def get(self, key: K) -> R | None:
        """A row, or None where there is none."""
        row = self._out.get(key)
        if row is None:
            row = self._rows[key] if key in self._rows else self._read(key)
            if row is not None:
                self._out[key] = row
        return row

    def known(self, key: K) -> R:
        """A row that is there."""
        row = self.get(key)
        assert row is not None
        return row

    def add(self, row: R) -> R:
        """A new row."""
        key = self._layout.key_of(row)
        self._rows[key] = self._out[key] = row
        return row

    def find(self, where: str, *arguments: object) -> list[R]:
        """Rows by a condition on the whole table, in the order of their keys."""
        self.flush()
        layout, rows, found = self._layout, self._rows, []
        for values in self._db.execute(layout.select + where + layout.order, arguments):
            key = values[0] if layout.num_keys == 1 else values[: layout.num_keys]
            row = rows.get(key)
            if row is None:
                row = rows[key] = layout.kind(*values)
                self._stored[key] = values
            self._out[key] = row
            found.append(row)
        return found

    def flush(self) -> None:
        """Write what has changed of what was handed out."""
        values, stored, changed = self._layout.values, self._stored, []
        for key, row in self._out.items():
            now = values(row)
            if stored.get(key) != now:
                stored[key] = now
                changed.append(now)
        if changed:
            self._db.executemany(self._layout.write, changed)
        self._out.clear()

    def _read(self, key: K) -> R | None:
        arguments: Any = (key,) if self._layout.num_keys == 1 else key
        found = self._db.execute(self._layout.one, arguments).fetchone()
        row = None
        if found:
            row, self._stored[key] = self._layout.kind(*found), found
        self._rows[key] = row
        return row


SOURCES: Layout[str, SourceRow] = Layout("sources", SourceRow)
LIVES: Layout[int, LifeRow] = Layout("incarnations", LifeRow)
EPOCHS: Layout[int, EpochRow] = Layout("epochs", EpochRow)
LEASES: Layout[int, LeaseRow] = Layout("leases", LeaseRow)
BLOCKS: Layout[tuple[int, int], BlockRow] = Layout("blocks", BlockRow, num_keys=2)

_RUN = [column.name for column in fields(RunRow)]
_READ_RUN = f"SELECT {', '.join(_RUN)} FROM run"
_WRITE_RUN = f"UPDATE run SET {', '.join(f'{column} = ?' for column in _RUN)}"
_run_values = attrgetter(*_RUN)


def read_run(db: sqlite3.Connection) -> RunRow:
    """The run's row as it stands."""
    return RunRow(*db.execute(_READ_RUN).fetchone())


def write_run(db: sqlite3.Connection, run: RunRow) -> None:
    """Write it back."""
    db.execute(_WRITE_RUN, _run_values(run))
