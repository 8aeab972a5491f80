"""The `BlobStore` protocol, and how a blob is named.

A blob's digest is made of its chunks' digests, so that chunks can be checked, sent and resumed one
by one: sha256(TAG || chunk size || length || sha256(chunk 0) || sha256(chunk 1) || ...), in hex.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 2 << 20
_TAG = b"atoll blob 1\n"

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob as events name it (R20)."""

    digest: str
    num_bytes: int


class BlobStore(Protocol):
    """Content-addressed files. Implementations: `eventlog.dir_blobs`, `broker.jetstream_blobs`."""

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """Store a file. Chunks that are there already are not sent again, so a broken or repeated
        put resumes; the blob is complete, and `has` it, only once all of it is stored.
        Raises BlobUnavailable."""
        ...

    async def get(self, digest: str, target: Path, progress: Progress | None = None) -> None:
        """Fetch into `target`, which appears whole or not at all; a broken get resumes from the
        part file beside it. Raises BlobMissing, BlobDamaged, BlobUnavailable."""
        ...

    async def has(self, digest: str) -> bool:
        """Whether the complete blob is stored."""
        ...

    async def digests(self) -> list[str]:
        """Digests of all complete blobs, sorted."""
        ...

    async def release(self, digests: Iterable[str]) -> None:
        """Remove blobs, whole or half; unknown digests are no error. Only after BlobsReleased."""
        ...

    async def close(self) -> None: ...


def chunk_digests(path: Path) -> tuple[list[bytes], int]:
    """sha256 of each CHUNK_BYTES piece of a file, and the file's length."""
    digests, num_bytes = [], 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digests.append(hashlib.sha256(chunk).digest())
            num_bytes += len(chunk)
    return digests, num_bytes


def combine(digests: Iterable[bytes], num_bytes: int) -> str:
    """The blob's digest (hex) from its chunks' digests and its length."""
    whole = hashlib.sha256(_TAG + struct.pack(">IQ", CHUNK_BYTES, num_bytes))
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def digest_file(path: Path) -> BlobRef:
    """Name a file's content as a blob."""
    digests, num_bytes = chunk_digests(path)
    return BlobRef(combine(digests, num_bytes), num_bytes)
