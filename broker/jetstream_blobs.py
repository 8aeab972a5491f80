"""`BlobStore` on JetStream: a stream of chunks beside the run's stream of events.

Part p of a blob (a chunk's number, or "meta") is the one message of
`atoll.<run>.blob.<digest>.<p>.<writer>`. Every message expects its subject to be empty, so nothing
is ever stored twice, also when one whose answer was lost arrives later. Nobody can write where
another writes: a forged part spoils the forger's copy alone, and who reads takes the copy that is
what its digest says. Chunks travel over links of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from broker.api import ask, parse, persist, stream_info
from broker.appender import EXPECTED
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import NO_STREAM, WRONG_LAST_SEQUENCE, ApiError, LinkDown
from broker.streams import blob_config, blob_stream, create_stream, open_stream
from eventlog.blobs import Progress, is_digest
from eventlog.chunked import META, ChunkedBlobs
from eventlog.errors import BlobDamaged, BlobTooLarge, BlobUnavailable
from eventlog.pace import Pace

PATIENCE_S = 120.0  # how long a chunk is tried
# How long a window may take on a slow link; a broken one is noticed before. An answer that was
# lost, as when a broker with accounts reads its configuration anew, is missed sooner.
_FIRST_S, _CHUNK_S = 15.0, 60.0

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
        self._writer = connection.label
        self._source: dict[str, str] = {}  # whose copy of a blob is being read

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
        await create_stream(connection.control, blob_config(run), connection.num_replicas)
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
        return is_digest(digest) and bool(await self._names(f"{digest}.{META}.*"))

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return sorted({digest for digest, _, _ in await self._names(f"*.{META}.*")})

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """See `BlobStore.get`: one writer's copy after another, until one is whole."""
        found = await self._names(f"{digest}.{META}.*") if is_digest(digest) else set()
        writers = sorted({writer for _, _, writer in found}, key=self._trust)
        problem: BlobDamaged | None = None
        for writer in writers or [self._writer]:
            self._source[digest] = writer
            try:
                return await super().get(digest, target, progress, max_bytes=max_bytes)
            except BlobTooLarge:
                raise  # its digest covers its length: no copy is shorter
            except BlobDamaged as error:
                problem = problem or error
            finally:
                self._source.pop(digest, None)
        assert problem is not None
        raise problem

    def _trust(self, writer: str) -> tuple[bool, str]:
        """Those who merge first: a site's copy only where they have none."""
        return writer.startswith("site-"), writer

    async def _parts(self, digest: str) -> set[str]:
        return {part for _, part, _ in await self._names(f"{digest}.*.{self._writer}")}

    async def _all_parts(self) -> Iterable[tuple[str, str]]:
        return {(digest, part) for digest, part, _ in await self._names("*.*.*")}

    async def _remove(self, digest: str) -> None:
        body = {"filter": f"{self._prefix}{digest}.>"}
        subject = f"STREAM.PURGE.{self._stream}"
        await self._persist(lambda: ask(self._connection.control, subject, body))

    async def _write(self, digest: str, part: str, data: bytes, number: int) -> None:
        name = f"{digest}.{part}.{self._writer}"
        message = Outgoing(self._prefix + name, data, {EXPECTED: "0"})
        tries = 0

        async def work() -> None:
            nonlocal tries
            tries += 1
            if tries > 1 and await self._stored(name):
                return  # only the answer was lost: a small question spares a large message
            link = self._connection.bulk(number + tries)
            wait_s = _FIRST_S if tries == 1 else _CHUNK_S
            answer = parse((await link.request(message, timeout_s=wait_s)).data)
            if answer.get("stream") != self._stream:
                raise LinkDown(f"the answer does not come from stream {self._stream}")

        try:
            await self._persist(work)
        except _AlreadyStored:
            return

    async def _read(self, digest: str, part: str, number: int) -> bytes | None:
        """By direct get: as it is, not in JSON."""
        name = f"{digest}.{part}.{self._source.get(digest, self._writer)}"
        subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{name}"
        tries = 0

        async def work() -> bytes | None:
            nonlocal tries
            tries += 1
            link = self._connection.bulk(number + tries)
            wait_s = _FIRST_S if tries == 1 else _CHUNK_S
            message = await link.request(Outgoing(subject), timeout_s=wait_s)
            if message.status and message.status != "404":
                raise LinkDown(message.headers.get("Description", "no direct get"))
            if message.status and self._connection.num_replicas > 1 and await self._stored(name):
                raise LinkDown("a replica that answers is behind")
            return None if message.status else message.data

        return await self._persist(work)

    async def _names(self, pattern: str) -> set[tuple[str, str, str]]:
        """(digest, part, writer) of the stored messages that match, page by page."""
        found: set[tuple[str, str, str]] = set()
        while True:
            page, total = await self._persist(partial(self._page, pattern, len(found)))
            found |= page
            if not page or len(found) >= total:
                return found

    async def _page(self, pattern: str, offset: int) -> tuple[set[tuple[str, str, str]], int]:
        body = {"subjects_filter": self._prefix + pattern, "offset": offset}
        info = await stream_info(self._connection.control, self._stream, body)
        subjects = info["state"].get("subjects") or {}
        names = (subject.removeprefix(self._prefix).split(".") for subject in subjects)
        found = {(name[0], name[1], name[2]) for name in names if len(name) == 3}
        return found, int(info.get("total", 0))

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
