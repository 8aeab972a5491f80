"""Chunks of files, read, written and hashed in threads beside the event loop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from eventlog.blobs import CHUNK_BYTES


def read_chunk(path: Path, index: int) -> bytes:
    """Chunk `index` of a file."""
    with path.open("rb") as file:
        file.seek(index * CHUNK_BYTES)
        return file.read(CHUNK_BYTES)


def hash_chunk(chunk: bytes) -> bytes:
    """sha256 of a chunk."""
    return hashlib.sha256(chunk).digest()


class PartFile:
    """The file `<target>.part`: filled in any order, kept when it is left half done, moved over
    the target by `finish`.

    Each call opens the file for itself: a thread whose caller was cancelled may still be writing,
    and must not meet a closed handle, or another file under its number.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = target.with_name(target.name + ".part")

    def open(self, digests: Sequence[bytes]) -> set[int]:
        """Make the file, or take up the one that is there: the indices of the chunks that it
        holds already, each checked by its sha256."""
        self.path.touch()
        with self.path.open("rb") as file:
            return {
                i
                for i, digest in enumerate(digests)
                if hash_chunk(file.read(CHUNK_BYTES)) == digest
            }

    def write(self, chunk: bytes, index: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(index * CHUNK_BYTES)
            file.write(chunk)

    def finish(self, num_bytes: int) -> None:
        """Cut to its length, make it durable, and let it appear as the target."""
        with self.path.open("r+b") as file:
            file.truncate(num_bytes)
            os.fsync(file.fileno())
        os.replace(self.path, self._target)
