"""`EventLog` on JetStream: one stream per run, whose order is the order of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from broker.api import Stored, get_message, persist
from broker.appender import Appender
from broker.connection import Connection
from broker.reader import Reader
from broker.streams import (
    create_stream,
    log_config,
    log_stream,
    mirror_config,
    mirror_stream,
    open_stream,
    run_names,
)
from eventlog.chain import Record
from eventlog.errors import LogUnavailable
from eventlog.log import check_append

T = TypeVar("T")
PATIENCE_S = 20.0
HEARTBEAT_S = 5.0  # a follower that hears nothing for three of them starts anew


class JetStreamLog:
    """See `EventLog`. Made by `create` or `open`; the connection stays its maker's to close.

    patience_s: how long a call outlasts a broker that does not answer.
    """

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        patience_s: float = PATIENCE_S,
        heartbeat_s: float = HEARTBEAT_S,
        stream: str | None = None,
    ) -> None:
        self.run = run
        self._link, self._stream = connection.control, stream or log_stream(run)
        self._prefix, self._patience_s = f"atoll.{run}.ev.", patience_s
        self._appender = Appender(self._link, self._stream, self._prefix, patience_s)
        self._reader = Reader(self._link, self._stream, self._prefix, patience_s, heartbeat_s)
        self._closed = False

    @classmethod
    async def create(
        cls, connection: Connection, run: str, *, patience_s: float = PATIENCE_S
    ) -> JetStreamLog:
        """Make the run's stream and open it; the one that is there, if it is as it should be: the
        run begins with whoever appends its first event. Raises BrokerUnfit, LogUnavailable."""
        await create_stream(connection.control, log_config(run), connection.num_replicas)
        return cls(connection, run, patience_s=patience_s)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        run: str,
        *,
        patience_s: float = PATIENCE_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> JetStreamLog:
        """Open the log of a run that exists.

        Raises RunUnknown, BrokerUnfit where its configuration has drifted, LogUnavailable.
        """
        await open_stream(connection.control, log_config(run), run)
        return cls(connection, run, patience_s=patience_s, heartbeat_s=heartbeat_s)

    @classmethod
    async def mirror(
        cls, connection: Connection, run: str, *, create: bool = False, tags: Sequence[str] = ()
    ) -> JetStreamLog:
        """Open the second copy of a run's log; `create`: make it first, on servers with these
        tags. Nothing can be appended to it. Raises RunUnknown, BrokerUnfit, LogUnavailable."""
        config = mirror_config(run)
        if create:
            await create_stream(connection.control, config, tags=tags)
        await open_stream(connection.control, config, run)
        return cls(connection, run, stream=mirror_stream(run))

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """See `EventLog.append`."""
        check_append(subject, payloads)
        self._check_open()
        return await self._appender.append(subject, payloads, expected_last)

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        """See `EventLog.read`."""
        self._check_open()
        return await self._reader.read(after, subjects, limit)

    def follow(
        self, after: int, *, subjects: Sequence[str] | None = None
    ) -> AsyncIterator[list[Record]]:
        """See `EventLog.follow`."""
        return self._reader.follow(after, subjects)

    async def at(self, sequence: int) -> Record | None:
        """See `EventLog.at`."""
        self._check_open()
        return await self._get({"seq": sequence}) if sequence > 0 else None

    async def last(self, subject: str) -> Record | None:
        """See `EventLog.last`."""
        self._check_open()
        return await self._get({"last_by_subj": self._prefix + subject})

    async def last_sequence(self) -> int:
        """See `EventLog.last_sequence`. Raises LogDamaged where the broker has lost events."""
        self._check_open()
        return await self._patiently(self._reader.last_sequence)

    async def close(self) -> None:
        """End followers; a second close does nothing. The connection stays open."""
        self._closed = True
        self._reader.close()

    async def _get(self, query: dict[str, object]) -> Record | None:
        async def work() -> Stored | None:
            return await get_message(self._link, self._stream, query)

        stored = await self._patiently(work)
        if stored is None:
            return None
        subject = stored.subject.removeprefix(self._prefix)
        return Record(stored.sequence, subject, stored.time_ns, stored.data)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        what = f"the log of run {self.run!r} cannot be read"
        return await persist(work, self._patience_s, LogUnavailable, what)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"the log of run {self.run!r} is closed; open it again")


async def list_runs(connection: Connection) -> list[str]:
    """Names of the runs a broker holds, sorted. Raises LogUnavailable."""
    return await run_names(connection.control)
