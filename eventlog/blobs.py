"""The `BlobStore` protocol, and how a blob is named.

A blob's digest is made of its chunks' digests, so that chunks can be checked, sent and resumed one
by one: sha256(TAG || chunk size || length || sha256(chunk 0) || sha256(chunk 1) || ...), in hex.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 2 << 20
_LONG_BYTES = 32 << 20  # of a file that two threads are worth
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_TAG = b"atoll blob 1\n"

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob as events name it (R20)."""

    digest: str
    num_bytes: int


class BlobStore(Protocol):
    """Content-addressed files. Implementations: `eventlog.dir_blobs`, `eventlog.s3_blobs`,
    `broker.jetstream_blobs`."""

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """Store a file. Chunks that are there already are not sent again, so a broken or repeated
        put resumes; the blob is complete, and `has` it, only once all of it is stored.
        Raises BlobUnavailable."""
        ...

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """Fetch into `target`, which appears whole or not at all; a broken get resumes from the
        part file beside it. Of a blob longer than `max_bytes` nothing is fetched. Raises
        BlobMissing, BlobDamaged, BlobTooLarge, BlobUnavailable."""
        ...

    async def has(self, digest: str) -> bool:
        """Whether the complete blob is stored."""
        ...

    async def digests(self) -> list[str]:
        """Digests of all complete blobs, sorted."""
        ...

    async def unfinished(self) -> dict[str, int]:
        """Blobs of which only a part is stored, each with a number that grows as more comes."""
        ...

    async def release(self, digests: Iterable[str]) -> None:
        """Remove blobs, whole or half; unknown digests are no error. Only after BlobsReleased."""
        ...

    async def close(self) -> None: ...


def is_digest(text: str) -> bool:
    """Whether it can name a blob."""
    return bool(_DIGEST.match(text))


def chunk_digests(path: Path) -> tuple[list[bytes], int]:
    """sha256 of each CHUNK_BYTES piece of a file, and the file's length; by two threads where the
    file is long."""
    size = path.stat().st_size
    half = size // (2 * CHUNK_BYTES) * CHUNK_BYTES
    if size < _LONG_BYTES:
        return _digests_of(path, 0, None)
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(_digests_of, path, 0, half)
        second = _digests_of(path, half, None)
    return first.result()[0] + second[0], half + second[1]


def _digests_of(path: Path, start: int, end: int | None) -> tuple[list[bytes], int]:
    """Of the chunks from `start` to `end` (to the last byte): their sha256, and their length."""
    digests, at, buffer = [], start, memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb") as file:
        file.seek(start)
        while (end is None or at < end) and (num := file.readinto(buffer)):
            digests.append(hashlib.sha256(buffer[:num]).digest())
            at += num
    return digests, at - start


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
