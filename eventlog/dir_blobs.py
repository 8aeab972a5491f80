"""Blobs in a directory: one file per blob, named by its digest; half ones under `parts/`.

Whoever writes a part writes the bytes its digest names, at their own offsets. So a part that a
crash left is continued, and two processes that store the same blob at once do each other no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from eventlog.blobs import (
    CHUNK_BYTES,
    BlobRef,
    Progress,
    chunk_digests,
    combine,
    is_digest,
)
from eventlog.errors import BlobDamaged, BlobMissing, BlobTooLarge, BlobUnavailable


class DirBlobs:
    """A `BlobStore` in the directory `path`, which is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = path / "parts"
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BlobUnavailable(f"no blobs can be kept in {path}: {error}") from error

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """See `BlobStore.put`. Raises BlobDamaged where the source changes meanwhile."""
        try:
            digests, num_bytes = await asyncio.to_thread(chunk_digests, source)
            digest = combine(digests, num_bytes)
            if not self._blob(digest).exists():
                part = self.part(digest)
                await _copy_in_thread(source, part, progress, digests)
                await asyncio.to_thread(self._complete, part, digest)
        except OSError as error:
            raise BlobUnavailable(f"{source} cannot be stored in {self.path}: {error}") from error
        return BlobRef(digest, num_bytes)

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """See `BlobStore.get`."""
        part = target.with_name(target.name + ".part")
        try:
            num_bytes = self._blob(digest).stat().st_size
            if max_bytes is not None and num_bytes > max_bytes:
                raise BlobTooLarge(digest, num_bytes, max_bytes)
            held, num_bytes = await _copy_in_thread(self._blob(digest), part, progress)
            if combine(held, num_bytes) != digest:
                part.unlink()
                raise BlobDamaged(
                    f"blob {digest} in {self.path} has other bytes than its digest names; "
                    "restore it from another copy"
                )
            os.replace(part, target)
        except FileNotFoundError as error:
            if self._blob(digest).exists():
                raise BlobUnavailable(f"{target} cannot be written: {error}") from error
            raise BlobMissing(f"blob {digest} is not in {self.path}") from error
        except OSError as error:
            raise BlobUnavailable(f"blob {digest} cannot be read to {target}: {error}") from error

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        return is_digest(digest) and self._blob(digest).exists()

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return sorted(path.name for path in self.path.iterdir() if is_digest(path.name))

    async def unfinished(self) -> dict[str, int]:
        """See `BlobStore.unfinished`: bytes so far."""
        sizes = {}
        for path in sorted(self._parts.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # it was completed this very moment
                sizes[path.name] = path.stat().st_size
        return sizes

    async def release(self, digests: Iterable[str]) -> None:
        """See `BlobStore.release`."""
        for digest in filter(is_digest, digests):
            self._blob(digest).unlink(missing_ok=True)
            self.part(digest).unlink(missing_ok=True)

    async def close(self) -> None:
        """Nothing is held between calls."""

    def part(self, digest: str) -> Path:
        """Where a blob is kept while it is not complete."""
        return self._parts / self._blob(digest).name

    def adopt(self, part: Path, digest: str) -> None:
        """Move a complete file into the store, under the digest its content has.

        Raises BlobDamaged where it has another.
        """
        digests, num_bytes = chunk_digests(part)
        if combine(digests, num_bytes) != digest:
            raise BlobDamaged(f"{part} is not the blob {digest}; make or fetch it again")
        self._complete(part, digest)

    def _blob(self, digest: str) -> Path:
        if not is_digest(digest):
            raise BlobMissing(f"{digest!r} is no digest of a blob")
        return self.path / digest

    def _complete(self, part: Path, digest: str) -> None:
        """The rename that makes a blob visible, and makes it stay."""
        try:
            os.replace(part, self._blob(digest))
        except FileNotFoundError:
            if not self._blob(digest).exists():  # else another process was faster
                raise
        sync_directory(self.path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Stopped(Exception):
    """Whoever wanted the copy has left."""


Copied = tuple[list[bytes], int]  # digests of the chunks, and bytes in all


async def _copy_in_thread(
    source: Path, part: Path, progress: Progress | None, expected: list[bytes] | None = None
) -> Copied:
    """Copy in a thread that owns its file handles: when the caller is cancelled it ends at its
    next chunk by itself, and no handle is closed under it."""
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def report(done: int, total: int) -> None:
        if stopped.is_set():
            raise _Stopped
        if progress:
            loop.call_soon_threadsafe(progress, done, total)

    try:
        return await asyncio.to_thread(_copy, report, source, part, expected)
    finally:
        stopped.set()


def _copy(report: Progress, source: Path, part: Path, expected: list[bytes] | None) -> Copied:
    """Copy into a part file, sparing chunks that it holds; checks each before it writes it."""
    digests: list[bytes] = []
    done = 0
    with source.open("rb") as reader, _open_part(part) as writer:
        handle, total = writer.fileno(), os.fstat(reader.fileno()).st_size
        while chunk := reader.read(CHUNK_BYTES):
            digests.append(hashlib.sha256(chunk).digest())
            if expected is not None and digests[-1:] != expected[len(digests) - 1 : len(digests)]:
                break
            if os.pread(handle, len(chunk), done) != chunk:
                _write_all(handle, chunk, done)
            done += len(chunk)
            report(done, total)
        if expected is not None and digests != expected:
            raise BlobDamaged(f"{source} changed while it was stored; store it again")
        os.ftruncate(handle, done)
        os.fsync(handle)
    return digests, done


def _open_part(part: Path) -> BinaryIO:
    return os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b")


def _write_all(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
