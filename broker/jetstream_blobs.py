"""`BlobStore` on JetStream: a stream of chunks beside the run's stream of events.

Part p of a blob (a chunk's number, or "meta") is the one message of
`atoll.<run>.blob.<digest>.<p>`. Every message expects its subject to be empty, so nothing is ever
stored twice, also when one whose answer was lost arrives later. Chunks travel over links of their
own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from broker.api import ask, parse, persist
from broker.appender import EXPECTED
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import NO_STREAM, WRONG_LAST_SEQUENCE, ApiError, LinkDown
from broker.streams import blob_config, blob_stream, create_stream, open_stream
from eventlog.blobs import is_digest
from eventlog.chunked import META, ChunkedBlobs
from eventlog.errors import BlobUnavailable
from eventlog.pace import Pace

PATIENCE_S = 120.0  # how long a chunk is tried
_CHUNK_S = 60.0  # how long a window may take on a slow link; a broken one is noticed before

T = TypeVar("T")


class JetStreamBlobs(ChunkedBlobs):
    """Made by `create` or `open`; the connection stays its maker's to close."""

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        patience_s: float = PATIENCE_S,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(f"the blobs of run {run!r}", pace)
        self._connection, self._patience_s = connection, patience_s
        self._stream, self._prefix = blob_stream(run), f"atoll.{run}.blob."

    @classmethod
    async def create(
        cls,
        connection: Connection,
        run: str,
        *,
        patience_s: float = PATIENCE_S,
        pace: Pace | None = None,
    ) -> JetStreamBlobs:
        """Make the run's stream of blobs, or take the one that is there.

        Raises BrokerUnfit, LogUnavailable."""
        await create_stream(connection.control, blob_config(run))
        return cls(connection, run, patience_s=patience_s, pace=pace)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        run: str,
        *,
        patience_s: float = PATIENCE_S,
        pace: Pace | None = None,
    ) -> JetStreamBlobs:
        """Open the blobs of a run that exists. Raises RunUnknown, BrokerUnfit, LogUnavailable."""
        await open_stream(connection.control, blob_config(run), run)
        return cls(connection, run, patience_s=patience_s, pace=pace)

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        return is_digest(digest) and bool(await self._names(f"{digest}.{META}"))

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return sorted(digest for digest, _ in await self._names(f"*.{META}"))

    async def _parts(self, digest: str) -> set[str]:
        return {part for _, part in await self._names(f"{digest}.*")}

    async def _all_parts(self) -> Iterable[tuple[str, str]]:
        return await self._names("*.*")

    async def _remove(self, digest: str) -> None:
        body = {"filter": f"{self._prefix}{digest}.>"}
        subject = f"STREAM.PURGE.{self._stream}"
        await self._persist(lambda: ask(self._connection.control, subject, body))

    async def _write(self, digest: str, part: str, data: bytes, number: int) -> None:
        name = f"{digest}.{part}"
        message = Outgoing(self._prefix + name, data, {EXPECTED: "0"})
        tries = 0

        async def work() -> None:
            nonlocal tries
            tries += 1
            if tries > 1 and await self._stored(name):
                return  # only the answer was lost: a small question spares a large message
            link = self._connection.bulk(number + tries)
            answer = parse((await link.request(message, timeout_s=_CHUNK_S)).data)
            if answer.get("stream") != self._stream:
                raise LinkDown(f"the answer does not come from stream {self._stream}")

        try:
            await self._persist(work)
        except _AlreadyStored:
            return

    async def _read(self, digest: str, part: str, number: int) -> bytes | None:
        """By direct get: as it is, not in JSON."""
        subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{digest}.{part}"
        tries = 0

        async def work() -> bytes | None:
            nonlocal tries
            tries += 1
            link = self._connection.bulk(number + tries)
            message = await link.request(Outgoing(subject), timeout_s=_CHUNK_S)
            if message.status and message.status != "404":
                raise LinkDown(message.headers.get("Description", "no direct get"))
            return None if message.status else message.data

        return await self._persist(work)

    async def _names(self, pattern: str) -> set[tuple[str, str]]:
        """(digest, part) of the stored messages that match, page by page."""
        found: set[tuple[str, str]] = set()
        while True:
            page, total = await self._persist(partial(self._page, pattern, len(found)))
            found |= page
            if not page or len(found) >= total:
                return found

    async def _page(self, pattern: str, offset: int) -> tuple[set[tuple[str, str]], int]:
        body = {"subjects_filter": self._prefix + pattern, "offset": offset}
        info = await ask(self._connection.control, f"STREAM.INFO.{self._stream}", body)
        subjects = info["state"].get("subjects") or {}
        names = (subject.removeprefix(self._prefix).partition(".") for subject in subjects)
        return {(digest, part) for digest, _, part in names}, int(info.get("total", 0))

    async def _stored(self, name: str) -> bool:
        page, _ = await self._page(name, 0)
        return bool(page)

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        async def attempt() -> T:
            try:
                return await work()
            except LinkDown:
                self._window.shrink()
                raise
            except ApiError as error:
                if error.code in (429, 503):  # its queue is full, or it cannot serve now
                    self._window.shrink()
                raise

        what = f"{self._name} cannot be reached"
        try:
            return await persist(attempt, self._patience_s, BlobUnavailable, what)
        except ApiError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise _AlreadyStored from error
            assert error.err_code == NO_STREAM
            raise BlobUnavailable(f"stream {self._stream} is gone; restore it") from error


class _AlreadyStored(Exception):
    """The subject already has its message."""
