"""Folds of the log into SQLite: the rows and the position they stand at, in one transaction.

A projection is a cache. Whatever happens to it, the log rebuilds it; whatever happens to a process
in the middle of it, the rows are those of exactly the events through its position.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from asyncio import sleep
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sqlite_utils import Database

from eventlog.chain import Record, extend, start
from eventlog.codec import Entry, decode
from eventlog.errors import LogDamaged
from eventlog.export import to_end
from eventlog.locks import exclusive
from eventlog.log import EventLog

TABLE = "projection_position"
Folded = list[tuple[Entry, list[str]]]  # each event, and per fold '' or why it is void

logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A state as a function of the log. All of it is in the database wherever a transaction ends,
    nothing in the object: one that is rolled back must take everything with it. Between `begin`
    and `finish` a fold may hold rows back, to write them once."""

    name: str
    schema_version: int  # another number: projections made by the old code are rebuilt

    def create(self, db: sqlite3.Connection) -> None:
        """Make the empty tables, with `execute` (an `executescript` would commit)."""
        ...

    def begin(self, db: sqlite3.Connection) -> None:
        """A transaction has begun; nothing that was held back in an earlier one is true."""
        ...

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        """Fold one event, in log order; '' or the reason why the event is void (R1). Neither
        begins nor ends a transaction, and raises only on a bug."""
        ...

    def finish(self, db: sqlite3.Connection) -> None:
        """Write what is held back; the transaction ends now."""
        ...


@dataclass(frozen=True, slots=True)
class Position:
    """Through where a projection is folded. `record_digest`: of the record there ('' at 0);
    `log_digest`: D(sequence) in hex, for a projection of the whole log (R18)."""

    sequence: int
    record_digest: str
    log_digest: str


class Projection:
    """Folds in one database: a file that this process alone uses, or ":memory:".

    `contiguous`: the whole log is folded, without gaps; otherwise some subjects of it (R16), whose
    sequences only rise, and `log_digest` is then of those records alone. A file of another run,
    other folds or other schema versions, or a broken one, is discarded with a warning in the
    logging and starts anew at 0. Raises LockHeld.
    """

    def __init__(
        self, path: Path | str, folds: Sequence[Fold], run: str, *, contiguous: bool = True
    ) -> None:
        self.run = run
        self.folds = tuple(folds)
        self.contiguous = contiguous
        self.path = None if str(path) == ":memory:" else Path(path)
        self._lock = None
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = exclusive(self.path, "the projection")
        try:
            self.db, self.position = self._open()
        except BaseException:
            if self._lock:
                self._lock.release()
            raise

    def apply(self, records: Sequence[Record]) -> Folded:
        """Fold the next records in one transaction: all of them, or none where anything raises.

        Raises LogDamaged, before anything is written, where they do not go on from the position.
        """
        folded: Folded = []
        self._fold(records, folded)
        return folded

    def replay(self, records: Sequence[Record]) -> None:
        """The same, where nobody asks what became of each event: none is kept in memory."""
        self._fold(records, None)

    def _fold(self, records: Sequence[Record], folded: Folded | None) -> None:
        if not records:
            return
        self._check_order(records)
        db, folds = self.db, self.folds
        digest = bytes.fromhex(self.position.log_digest)
        db.execute("BEGIN IMMEDIATE")
        try:
            for fold in folds:
                fold.begin(db)
            for record in records:
                entry = decode(record)
                said = [fold.apply(db, entry) for fold in folds]
                if folded is not None:
                    folded.append((entry, said))
                digest = extend(digest, record)
            for fold in folds:
                fold.finish(db)
            last = records[-1]
            position = Position(last.sequence, last.digest(), digest.hex())
            db.execute(
                f"UPDATE {TABLE} SET sequence = ?, record_digest = ?, log_digest = ?",
                (position.sequence, position.record_digest, position.log_digest),
            )
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self.position = position

    async def check(self, log: EventLog) -> None:
        """R19: whether the log still holds what was folded. Raises LogDamaged."""
        sequence = self.position.sequence
        if sequence == 0:
            return
        last = await log.last_sequence()
        if last < sequence:
            raise LogDamaged(
                last + 1, f"the log ends at {last}, but had been read through {sequence}"
            )
        record = await log.at(sequence)
        if record is None:
            raise LogDamaged(sequence, "the event that was read there is missing now")
        if record.digest() != self.position.record_digest:
            raise LogDamaged(sequence, "another event stands there than the one that was read")

    def close(self) -> None:
        """Close the database and let others use it."""
        self.db.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_order(self, records: Sequence[Record]) -> None:
        before = self.position.sequence
        for record in records:
            if record.sequence <= before:
                raise LogDamaged(record.sequence, f"it came again, after {before}")
            if self.contiguous and record.sequence != before + 1:
                raise LogDamaged(before + 1, f"it is missing, event {record.sequence} came instead")
            before = record.sequence

    def _open(self) -> tuple[sqlite3.Connection, Position]:
        """The database and its position; made anew where what is there is of no use."""
        fresh = self.path is None or not self.path.exists()
        db = _connect(self.path)
        if not fresh:
            try:
                position = self._found(db)
            except BaseException:
                db.close()
                raise
            if isinstance(position, Position):
                return db, position
            logger.warning("projection %s is built anew from the log: %s", self.path, position)
            db.close()
            db = self._discard()
        return db, self._create(db)

    def _discard(self) -> sqlite3.Connection:
        assert self.path is not None
        for suffix in ("-wal", "-shm", ""):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        return _connect(self.path)

    def _found(self, db: sqlite3.Connection) -> Position | str:
        """The position that the file stands at, or why the file is of no use."""
        try:
            _set_up(db)
            if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                return "the file is damaged"
            tables = Database(db, execute_plugins=False)
            if TABLE not in tables.table_names():
                return "it was never completed"
            row = next(iter(tables.table(TABLE).rows), {})
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            return f"the file is damaged ({error})"
        for key, value in self._identity().items():
            if row.get(key) != value:
                return f"its {key} is {row.get(key)!r}, needed is {value!r}"
        return Position(row["sequence"], row["record_digest"], row["log_digest"])

    def _create(self, db: sqlite3.Connection) -> Position:
        """Empty tables at position 0. The position row comes last: without it the file is void."""
        position = Position(0, "", start(self.run).hex())
        _set_up(db)
        db.execute("BEGIN IMMEDIATE")
        for fold in self.folds:
            fold.create(db)
        Database(db, execute_plugins=False).table(TABLE).insert(
            {
                **self._identity(),
                "sequence": position.sequence,
                "record_digest": position.record_digest,
                "log_digest": position.log_digest,
            }
        )
        if db.in_transaction:
            db.execute("COMMIT")
        return position

    def _identity(self) -> dict[str, Any]:
        """What a file must agree in to be of use."""
        versions = {fold.name: fold.schema_version for fold in self.folds}
        return {"run": self.run, "folds": json.dumps(versions), "contiguous": int(self.contiguous)}


async def run_projection(
    projection: Projection, log: EventLog, subjects: Sequence[str] | None = None
) -> int:
    """Check the position against the log and fold through its end; the number of events folded.

    `subjects`: of a projection that is not contiguous. Raises LogDamaged (R19).
    """
    await projection.check(log)
    num_events = 0
    async for records in to_end(log, projection.position.sequence, subjects):
        projection.replay(records)
        num_events += len(records)
        await sleep(0)  # a long history must not keep the process from its other duties
    return num_events


def _connect(path: Path | None) -> sqlite3.Connection:
    return sqlite3.connect(str(path or ":memory:"), isolation_level=None)


def _set_up(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a lost last commit is folded again
    db.execute("PRAGMA foreign_keys = ON")
