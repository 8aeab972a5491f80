"""What the fold is measured against: a bare loop, and the eventsourcing library.

Both read the very same events. The bare loop does what no fold of a verified log can leave out;
the library does what its documentation shows: it maps stored events back to domain events, and
its view and its position move in one SQLite transaction per event.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

import msgpack

from eventlog.chain import Record, extend, start
from eventlog.codec import unpack
from eventlog.projector import Projection
from leases.table import LeaseTable

BATCH = 1000  # events of one transaction, as recovery and audit read them

_UPSERT = (
    "INSERT INTO sources VALUES (?, ?, ?, ?) ON CONFLICT (subject) DO UPDATE SET "
    "n = excluded.n, last_id = excluded.last_id, last_seq = excluded.last_seq"
)
_TABLE = (
    "CREATE TABLE sources (subject TEXT PRIMARY KEY, n INTEGER, last_id TEXT, last_seq INTEGER) "
    "WITHOUT ROWID"
)


def batches(records: Sequence[Record]) -> Iterable[Sequence[Record]]:
    """As a log is read."""
    for first in range(0, len(records), BATCH):
        yield records[first : first + BATCH]


class Fold:
    """The lease table's fold, in a projection of its own. `seconds`: what it took so far;
    `cpu_s`: of it, on the processor."""

    def __init__(self, run: str, path: Path) -> None:
        self._projection = Projection(path, [LeaseTable()], run)
        self.seconds = self.cpu_s = 0.0

    def feed(self, batch: Sequence[Record]) -> None:
        """Fold the next events, in one transaction."""
        began, cpu = time.perf_counter(), time.process_time()
        self._projection.replay(batch)
        self.cpu_s += time.process_time() - cpu
        self.seconds += time.perf_counter() - began

    def close(self) -> None:
        self._projection.close()


class Bare:
    """Unpacks each event, extends the log's digest by it, and writes its source's row: no more.
    `cpu_s`: what that took on the processor."""

    def __init__(self, run: str, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")  # as a projection sets it up
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(_TABLE)
        self._digest = start(run)
        self.cpu_s = 0.0

    def feed(self, batch: Sequence[Record]) -> None:
        """See `Fold.feed`."""
        db, digest = self._db, self._digest
        cpu = time.process_time()
        db.execute("BEGIN IMMEDIATE")
        for record in batch:
            wire = msgpack.unpackb(record.payload)
            digest = extend(digest, record)
            db.execute(_UPSERT, (record.subject, wire["n"], wire["id"], record.sequence))
        db.execute("COMMIT")
        self.cpu_s += time.process_time() - cpu
        self._digest = digest

    def close(self) -> None:
        self._db.close()


class Library:
    """The same events as domain events of the eventsourcing library, stored by its recorder.
    Raises ImportError without the library."""

    def __init__(self, records: Sequence[Record], folder: Path) -> None:
        from eventsourcing.application import Application
        from eventsourcing.domain import datetime_now_with_tzinfo

        from ops.bench.recorded import Recorded

        env = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": str(folder / "application.sqlite"),
        }
        self._app: Any = Application(env=env)
        self._num = len(records)
        make: Any = Recorded  # its metaclass hides the constructor's types
        versions: dict[str, int] = {}
        now = datetime_now_with_tzinfo()
        for batch in batches(records):
            stored = []
            for record in batch:
                versions[record.subject] = versions.get(record.subject, 0) + 1
                event = make(
                    originator_id=uuid5(NAMESPACE_URL, record.subject),
                    originator_version=versions[record.subject],
                    timestamp=now,
                    wire=cast(dict[str, Any], unpack(record.payload)),
                )
                stored.append(self._app.mapper.to_stored_event(event))
            self._app.recorder.insert_events(stored)

    def project(self, name: str) -> float:
        """Seconds to project them all into a new view."""
        from eventsourcing.persistence import InfrastructureFactory, Tracking
        from eventsourcing.sqlite import SQLiteTrackingRecorder
        from eventsourcing.utils import Environment

        class Sources(SQLiteTrackingRecorder):
            def construct_create_table_statements(self) -> list[str]:
                return [*super().construct_create_table_statements(), _TABLE]

            def upsert(self, wire: dict[str, Any], tracking: Tracking) -> None:
                row = (wire["source"], wire["n"], wire["id"], tracking.notification_id)
                with self.datastore.transaction(commit=True) as cursor:
                    self._insert_tracking(cursor, tracking)
                    cursor.execute(_UPSERT, row)

        env = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": ":memory:",  # its commit of every event waits for no disk
        }
        factory: Any = InfrastructureFactory.construct(env=Environment(name, env))
        view = factory.tracking_recorder(Sources)
        recorder, mapper = self._app.recorder, self._app.mapper
        began, position = time.perf_counter(), 0
        while position < self._num:
            for notification in recorder.select_notifications(position + 1, BATCH):
                event = mapper.to_domain_event(notification)
                position = notification.id
                view.upsert(event.wire, Tracking(self._app.name, position))
        return time.perf_counter() - began
