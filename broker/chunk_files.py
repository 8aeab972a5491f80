"""Chunks of files, read, written and hashed in threads beside the event loop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from eventlog.blobs import CHUNK_BYTES


def read_chunk(path: Path, index: int) -> bytes:
    """Chunk `index` of a file."""
    with path.open("rb") as file:
        file.seek(index * CHUNK_BYTES)
        return file.read(CHUNK_BYTES)


def hash_chunk(chunk: bytes) -> bytes:
    """sha256 of a chunk."""
    return hashlib.sha256(chunk).digest()


class ChunkFile:
    """The part file `<target>.part`: filled in any order, kept when it is left half done, moved
    over the target by `finish`. A context manager that closes its handle."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.with_name(target.name + ".part")
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._writing = 0

    def read(self, index: int) -> bytes:
        return os.pread(self._handle, CHUNK_BYTES, index * CHUNK_BYTES)

    def write(self, chunk: bytes, index: int) -> None:
        view, offset = memoryview(chunk), index * CHUNK_BYTES
        while view:
            written = os.pwrite(self._handle, view, offset)
            view, offset = view[written:], offset + written

    def finish(self, num_bytes: int) -> None:
        """Cut to its length, make it durable, and let it appear as the target."""
        os.ftruncate(self._handle, num_bytes)
        os.fsync(self._handle)
        os.replace(self._path, self._target)

    def __enter__(self) -> ChunkFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)


def held_chunks(part: ChunkFile, digests: Sequence[bytes]) -> set[int]:
    """Indices of the chunks that a part file holds already, each checked by its digest."""
    return {i for i, digest in enumerate(digests) if hash_chunk(part.read(i)) == digest}
