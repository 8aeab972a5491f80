"""Chunks of files, read, written and hashed in threads beside the event loop."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eventlog.blobs import CHUNK_BYTES, chunk_digests, combine
from eventlog.codec import pack, unpack
from eventlog.errors import BlobDamaged, EventInvalid

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Meta:
    """What is stored last of a blob: its length, and the sha256 of each chunk."""

    num_bytes: int
    chunks: tuple[bytes, ...]

    @classmethod
    def of(cls, source: Path) -> Meta:
        """Of a file's content."""
        digests, num_bytes = chunk_digests(source)
        return cls(num_bytes, tuple(digests))

    @property
    def digest(self) -> str:
        """The blob's digest."""
        return combine(self.chunks, self.num_bytes)

    def length(self, index: int) -> int:
        """Bytes of a chunk: all have CHUNK_BYTES but the last."""
        return min(CHUNK_BYTES, self.num_bytes - index * CHUNK_BYTES)

    def encode(self) -> bytes:
        return pack({"num_bytes": self.num_bytes, "chunks": b"".join(self.chunks)})

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Meta:
        """Raises BlobDamaged where it is not the meta of the blob `digest`, or says a length that
        its chunks cannot have: whoever may store blobs may have stored anything."""
        with contextlib.suppress(EventInvalid, KeyError, TypeError, struct.error):
            wire = unpack(data)
            num_bytes, joined = wire["num_bytes"], wire["chunks"]
            starts = range(0, len(joined), _DIGEST_BYTES)
            meta = cls(num_bytes, tuple(joined[at : at + _DIGEST_BYTES] for at in starts))
            fits = len(joined) == -(-num_bytes // CHUNK_BYTES) * _DIGEST_BYTES
            if fits and meta.digest == digest:
                return meta
        raise BlobDamaged(f"blob {digest}: its list of chunks is damaged; restore it")


def read_chunk(path: Path, index: int, digest: bytes) -> bytes:
    """Chunk `index` of a file. Raises BlobDamaged where it is not that of the digest any more."""
    with path.open("rb", buffering=0) as file:
        file.seek(index * CHUNK_BYTES)
        chunk = file.read(CHUNK_BYTES)
    if hash_chunk(chunk) != digest:
        raise BlobDamaged(f"{path} changed while it was stored; store it again")
    return chunk


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

    def write(self, chunk: bytes, index: int, digest: bytes) -> bool:
        """Write a chunk at its place, if it is the one of that digest; whether it is."""
        if hash_chunk(chunk) != digest:
            return False
        with self.path.open("r+b", buffering=0) as file:
            file.seek(index * CHUNK_BYTES)
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
        return True

    def finish(self, num_bytes: int) -> None:
        """Cut to its length, make it durable, and let it appear as the target."""
        with self.path.open("r+b") as file:
            file.truncate(num_bytes)
            os.fsync(file.fileno())
        os.replace(self.path, self._target)
