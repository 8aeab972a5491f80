"""`BlobStore` on JetStream: a stream of chunks beside the run's stream of events.

Chunk i of a blob is the one message of `atoll.<run>.blob.<digest>.<i>`. `...<digest>.meta`, written
last, holds the length and the chunks' digests. Every message expects its subject to be
empty, so nothing is ever stored twice. Chunks travel in a window over links of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from broker.api import ask, parse, persist
from broker.appender import EXPECTED
from broker.chunk_files import PartFile, hash_chunk, read_chunk
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import NO_STREAM, WRONG_LAST_SEQUENCE, ApiError, LinkDown
from broker.streams import blob_config, blob_stream, create_stream, open_stream
from eventlog.blobs import CHUNK_BYTES, BlobRef, Progress, chunk_digests, combine
from eventlog.codec import pack, unpack
from eventlog.errors import BlobDamaged, BlobMissing, BlobUnavailable, EventInvalid

WINDOW = (16 << 20) // CHUNK_BYTES  # chunks of one store in memory and on the way
PATIENCE_S = 120.0  # how long a chunk is tried
_CHUNK_S = 60.0  # how long a window may take on a slow link; a broken one is noticed before
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_DIGEST_BYTES = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Meta:
    """What is stored last of a blob: its length, and the sha256 of each chunk."""

    num_bytes: int
    chunks: tuple[bytes, ...]

    def encode(self) -> bytes:
        return pack({"num_bytes": self.num_bytes, "chunks": b"".join(self.chunks)})

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Meta:
        """Raises BlobDamaged where it is not the meta of the blob `digest`."""
        with contextlib.suppress(EventInvalid, KeyError, TypeError):
            wire = unpack(data)
            num_bytes, joined = wire["num_bytes"], wire["chunks"]
            starts = range(0, len(joined), _DIGEST_BYTES)
            chunks = tuple(joined[start : start + _DIGEST_BYTES] for start in starts)
            if combine(chunks, num_bytes) == digest:
                return cls(num_bytes, chunks)
        raise BlobDamaged(f"blob {digest}: its list of chunks is damaged; restore it")


class JetStreamBlobs:
    """See `BlobStore`. Made by `create` or `open`; the connection stays its maker's to close."""

    def __init__(self, connection: Connection, run: str, *, patience_s: float = PATIENCE_S) -> None:
        self.run = run
        self._connection, self._patience_s = connection, patience_s
        self._stream, self._prefix = blob_stream(run), f"atoll.{run}.blob."
        self._window = asyncio.Semaphore(WINDOW)
        self._closed = False

    @classmethod
    async def create(
        cls, connection: Connection, run: str, *, patience_s: float = PATIENCE_S
    ) -> JetStreamBlobs:
        """Make the run's stream of blobs, or take the one that is there.

        Raises BrokerUnfit, LogUnavailable."""
        await create_stream(connection.control, blob_config(run))
        return cls(connection, run, patience_s=patience_s)

    @classmethod
    async def open(
        cls, connection: Connection, run: str, *, patience_s: float = PATIENCE_S
    ) -> JetStreamBlobs:
        """Open the blobs of a run that exists. Raises RunUnknown, BrokerUnfit, LogUnavailable."""
        await open_stream(connection.control, blob_config(run), run)
        return cls(connection, run, patience_s=patience_s)

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """See `BlobStore.put`. Raises BlobDamaged where the source changes meanwhile."""
        try:
            digests, num_bytes = await asyncio.to_thread(chunk_digests, source)
            ref = BlobRef(combine(digests, num_bytes), num_bytes)
            if not await self.has(ref.digest):
                await self._put_chunks(source, ref, digests, progress)
                await self._store(f"{ref.digest}.meta", Meta(num_bytes, tuple(digests)).encode())
        except OSError as error:
            raise BlobUnavailable(f"{source} cannot be read: {error}") from error
        if progress:
            progress(num_bytes, num_bytes)
        return ref

    async def get(self, digest: str, target: Path, progress: Progress | None = None) -> None:
        """See `BlobStore.get`."""
        data = await self._fetch(f"{digest}.meta") if _DIGEST.match(digest) else None
        if data is None:
            raise BlobMissing(f"blob {digest} is not in run {self.run!r}")
        meta = Meta.decode(data, digest)
        try:
            part = PartFile(target)
            held = await asyncio.to_thread(part.open, meta.chunks)
            await self._get_chunks(digest, meta, part, held, progress)
            await asyncio.to_thread(part.finish, meta.num_bytes)
        except OSError as error:
            raise BlobUnavailable(f"{target} cannot be written: {error}") from error
        if progress:
            progress(meta.num_bytes, meta.num_bytes)

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        return bool(_DIGEST.match(digest)) and bool(await self._subjects(f"{digest}.meta"))

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return sorted(name.partition(".")[0] for name in await self._subjects("*.meta"))

    async def release(self, digests: Iterable[str]) -> None:
        """See `BlobStore.release`."""
        for digest in digests:
            if _DIGEST.match(digest):
                body = {"filter": f"{self._prefix}{digest}.>"}
                await self._persist(
                    lambda body=body: ask(  # type: ignore[misc]
                        self._connection.control, f"STREAM.PURGE.{self._stream}", body
                    )
                )

    async def close(self) -> None:
        """Refuse further calls; what is on its way ends by itself. The connection stays open."""
        self._closed = True

    async def _put_chunks(
        self, source: Path, ref: BlobRef, digests: Sequence[bytes], progress: Progress | None
    ) -> None:
        there = {name.partition(".")[2] for name in await self._subjects(f"{ref.digest}.*")}
        missing = [i for i in range(len(digests)) if str(i) not in there]
        report = _Report(progress, ref.num_bytes, missing)

        async def send(index: int) -> None:
            chunk = await asyncio.to_thread(read_chunk, source, index)
            if await asyncio.to_thread(hash_chunk, chunk) != digests[index]:
                raise BlobDamaged(f"{source} changed while it was stored; store it again")
            await self._store(f"{ref.digest}.{index}", chunk, index)
            report.add(len(chunk))

        await self._in_window(missing, send)

    async def _get_chunks(
        self,
        digest: str,
        meta: Meta,
        part: PartFile,
        held: set[int],
        progress: Progress | None,
    ) -> None:
        missing = [i for i in range(len(meta.chunks)) if i not in held]
        report = _Report(progress, meta.num_bytes, missing)

        async def receive(index: int) -> None:
            chunk = await self._fetch(f"{digest}.{index}", index)
            if chunk is None:
                raise BlobDamaged(f"blob {digest}: chunk {index} is gone; restore the blob")
            if await asyncio.to_thread(hash_chunk, chunk) != meta.chunks[index]:
                raise BlobDamaged(f"blob {digest}: chunk {index} is damaged; restore the blob")
            await asyncio.to_thread(part.write, chunk, index)
            report.add(len(chunk))

        await self._in_window(missing, receive)

    async def _in_window(
        self, indices: Sequence[int], work: Callable[[int], Awaitable[None]]
    ) -> None:
        """`work` on each index, WINDOW at once over the whole store; the first error ends all."""
        todo = iter(indices)

        async def worker() -> None:
            for index in todo:
                async with self._window:
                    await work(index)

        tasks = [asyncio.ensure_future(worker()) for _ in range(min(WINDOW, len(indices)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _store(self, name: str, data: bytes, number: int = 0) -> None:
        """Store one message, unless its subject has it already."""
        message = Outgoing(self._prefix + name, data, {EXPECTED: "0"})

        async def work() -> None:
            link = self._connection.bulk(number)
            answer = parse((await link.request(message, timeout_s=_CHUNK_S)).data)
            if answer.get("stream") != self._stream:
                raise LinkDown(f"the answer does not come from stream {self._stream}")

        with contextlib.suppress(_Stored):
            await self._persist(work)

    async def _fetch(self, name: str, number: int = 0) -> bytes | None:
        """The data of one message (by direct get, as it is, not in JSON), or None."""
        subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{name}"

        async def work() -> bytes | None:
            link = self._connection.bulk(number)
            message = await link.request(Outgoing(subject), timeout_s=_CHUNK_S)
            if message.status and message.status != "404":
                raise LinkDown(message.headers.get("Description", "no direct get"))
            return None if message.status else message.data

        return await self._persist(work)

    async def _subjects(self, pattern: str) -> set[str]:
        """Names (`<digest>.<part>`) of the stored messages that match."""
        names: set[str] = set()
        while True:
            body = {"subjects_filter": self._prefix + pattern, "offset": len(names)}
            info = await self._persist(
                lambda body=body: ask(  # type: ignore[misc]
                    self._connection.control, f"STREAM.INFO.{self._stream}", body
                )
            )
            page = info["state"].get("subjects") or {}
            names |= {subject.removeprefix(self._prefix) for subject in page}
            if not page or len(names) >= info.get("total", 0):
                return names

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise BlobUnavailable(f"the blobs of run {self.run!r} are closed; open them again")
        what = f"the blobs of run {self.run!r} cannot be reached"
        try:
            return await persist(work, self._patience_s, BlobUnavailable, what)
        except ApiError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise _Stored from error
            assert error.err_code == NO_STREAM
            raise BlobUnavailable(f"stream {self._stream} is gone; restore it") from error


class _Stored(Exception):
    """The subject already has its message."""


class _Report:
    """Counts bytes and tells whoever wants to know; what was there counts from the start."""

    def __init__(self, progress: Progress | None, total: int, missing: Sequence[int]) -> None:
        self._progress, self._total = progress, total
        left = sum(min(CHUNK_BYTES, total - index * CHUNK_BYTES) for index in missing)
        self._done = total - left

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress:
            self._progress(self._done, self._total)
