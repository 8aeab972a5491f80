"""Blobs in a store that holds small pieces: chunk by chunk, checked, in a window, resumed.

A store gives four requests (`_write`, `_read`, `_parts`, `_all_parts`) and how a blob is removed;
everything that makes a `BlobStore` of them is here. The part "meta", written last, holds the
length and the chunks' digests: without it there is no blob.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from eventlog.blobs import CHUNK_BYTES, BlobRef, Progress, is_digest
from eventlog.chunk_files import Meta, PartFile, read_chunk
from eventlog.errors import BlobDamaged, BlobMissing, BlobTooLarge, BlobUnavailable
from eventlog.pace import Pace, Window

META = "meta"


class ChunkedBlobs(ABC):
    """See `BlobStore`. `pace`: the cap that all transfers of this process share."""

    WINDOW: ClassVar[int] = (32 << 20) // CHUNK_BYTES  # chunks in memory and on the way, at most

    def __init__(self, name: str, pace: Pace | None = None) -> None:
        self._name, self._pace = name, pace  # the name stands in errors
        self._window = Window(self.WINDOW)
        self._closed = False

    @abstractmethod
    async def _write(self, digest: str, part: str, data: bytes, number: int) -> None:
        """Store a part durably, unless it is there. Raises BlobUnavailable."""

    @abstractmethod
    async def _read(self, digest: str, part: str, number: int) -> bytes | None:
        """A part, or None. Raises BlobUnavailable."""

    @abstractmethod
    async def _parts(self, digest: str) -> set[str]:
        """Which parts of a blob are stored."""

    @abstractmethod
    async def _all_parts(self) -> Iterable[tuple[str, str]]:
        """(digest, part) of everything that is stored."""

    @abstractmethod
    async def _remove(self, digest: str) -> None:
        """Remove all parts of a blob; nobody sees it without some of them."""

    @abstractmethod
    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""

    @abstractmethod
    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """See `BlobStore.put`. Raises BlobDamaged where the source changes meanwhile."""
        self._check_open()
        try:
            meta = await asyncio.to_thread(Meta.of, source)
            await self._put(source, meta, progress)
        except OSError as error:
            raise BlobUnavailable(f"{source} cannot be read: {error}") from error
        if progress:
            progress(meta.num_bytes, meta.num_bytes)
        return BlobRef(meta.digest, meta.num_bytes)

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """See `BlobStore.get`."""
        self._check_open()
        data = await self._read(digest, META, 0) if is_digest(digest) else None
        if data is None:
            raise BlobMissing(f"blob {digest} is not in {self._name}")
        meta = Meta.decode(data, digest)
        if max_bytes is not None and meta.num_bytes > max_bytes:
            raise BlobTooLarge(digest, meta.num_bytes, max_bytes)
        try:
            part = PartFile(target)
            held = await asyncio.to_thread(part.open, meta.chunks)
            await self._get_chunks(digest, meta, part, held, progress)
            await asyncio.to_thread(part.finish, meta.num_bytes)
        except OSError as error:
            raise BlobUnavailable(f"{target} cannot be written: {error}") from error
        if progress:
            progress(meta.num_bytes, meta.num_bytes)

    async def unfinished(self) -> dict[str, int]:
        """See `BlobStore.unfinished`."""
        num_parts: Counter[str] = Counter()
        whole = set()
        for digest, part in await self._all_parts():
            num_parts[digest] += 1
            if part == META:
                whole.add(digest)
        return {digest: num for digest, num in sorted(num_parts.items()) if digest not in whole}

    async def release(self, digests: Iterable[str]) -> None:
        """See `BlobStore.release`."""
        for digest in filter(is_digest, digests):
            self._check_open()
            await self._remove(digest)

    async def close(self) -> None:
        """Refuse further calls; what is on its way ends by itself."""
        self._closed = True

    async def _put(self, source: Path, meta: Meta, progress: Progress | None) -> None:
        """Until all of it is there: a release of the same blob may come in between, and take
        chunks away behind the look that found them."""
        digest, all_chunks = meta.digest, {str(index) for index in range(len(meta.chunks))}
        there = await self._parts(digest)
        while not there >= all_chunks | {META}:
            missing = sorted(map(int, all_chunks - there))
            await self._put_chunks(source, meta, missing, progress)
            resumed = 0 < len(missing) < len(all_chunks)
            if not resumed or await self._parts(digest) >= all_chunks:
                await self._write(digest, META, meta.encode(), 0)
            there = await self._parts(digest)

    async def _put_chunks(
        self, source: Path, meta: Meta, missing: Sequence[int], progress: Progress | None
    ) -> None:
        digest, report = meta.digest, _Report(progress, meta.num_bytes, missing)

        async def send(index: int) -> int:
            chunk = await asyncio.to_thread(read_chunk, source, index, meta.chunks[index])
            await self._paid(len(chunk))
            began = time.monotonic()
            await self._write(digest, str(index), chunk, index)
            self._window.answered(time.monotonic() - began)
            return len(chunk)

        await self._in_window(missing, send, report)

    async def _get_chunks(
        self, digest: str, meta: Meta, part: PartFile, held: set[int], progress: Progress | None
    ) -> None:
        missing = [i for i in range(len(meta.chunks)) if i not in held]
        report = _Report(progress, meta.num_bytes, missing)

        async def receive(index: int) -> int:
            await self._paid(meta.length(index))
            began = time.monotonic()
            chunk = await self._read(digest, str(index), index)
            if chunk is None:
                raise BlobDamaged(f"blob {digest}: chunk {index} is gone; restore the blob")
            self._window.answered(time.monotonic() - began)
            whole = len(chunk) == meta.length(index)  # a longer one would run into the next
            if not (
                whole and await asyncio.to_thread(part.write, chunk, index, meta.chunks[index])
            ):
                raise BlobDamaged(f"blob {digest}: chunk {index} is damaged; restore the blob")
            return len(chunk)

        await self._in_window(missing, receive, report)

    async def _in_window(
        self, indices: Sequence[int], work: Callable[[int], Awaitable[int]], report: _Report
    ) -> None:
        """`work` on each index, in the window that the whole store shares; the first error ends
        all of them."""
        todo = iter(indices)

        async def worker() -> None:
            for index in todo:
                async with self._window.slot():
                    num_bytes = await work(index)
                report.add(num_bytes)

        tasks = [asyncio.ensure_future(worker()) for _ in range(min(self.WINDOW, len(indices)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _paid(self, num_bytes: int) -> None:
        if self._pace is not None:
            await asyncio.sleep(self._pace.delay_s(num_bytes))

    def _check_open(self) -> None:
        if self._closed:
            raise BlobUnavailable(f"{self._name} is closed; open it again")


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
