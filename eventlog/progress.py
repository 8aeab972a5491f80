"""What a person hears of a transfer that takes long: how much is done, how fast, how long still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from eventlog.blobs import BlobRef, BlobStore, Progress

EVERY_S = 10.0  # between two lines; a transfer that is over sooner says nothing


def spoken(
    say: Callable[[str], None],
    what: str,
    clock: Callable[[], float] = time.monotonic,
    every_s: float = EVERY_S,
) -> Progress:
    """A progress callback that says a line every so often: "what: 512 of 1,192 MB, 43 MB/s, 16 s
    left". The rate is that of this attempt: what was there before it does not count."""
    began = said = clock()
    first: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal said, first
        now = clock()
        first = done if first is None else first
        if now - said < every_s:
            return
        said = now
        say(f"{what}: {_line(done, total, (done - first) / (now - began))}")

    return report


class SpokenBlobs:
    """A `BlobStore` that says how its long transfers go, each as a line for a person."""

    def __init__(self, blobs: BlobStore, say: Callable[[str], None]) -> None:
        self._blobs, self._say = blobs, say

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """See `BlobStore.put`."""
        return await self._blobs.put(
            source, _both(progress, spoken(self._say, f"storing {source.name}"))
        )

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """See `BlobStore.get`."""
        talk = _both(progress, spoken(self._say, f"fetching blob {digest[:12]}"))
        await self._blobs.get(digest, target, talk, max_bytes=max_bytes)

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        return await self._blobs.has(digest)

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return await self._blobs.digests()

    async def unfinished(self) -> dict[str, int]:
        """See `BlobStore.unfinished`."""
        return await self._blobs.unfinished()

    async def release(self, digests: Iterable[str]) -> None:
        """See `BlobStore.release`."""
        await self._blobs.release(digests)

    async def close(self) -> None:
        await self._blobs.close()


def _both(progress: Progress | None, talk: Progress) -> Progress:
    """Whoever asked is told as well."""
    if progress is None:
        return talk

    def report(done: int, total: int) -> None:
        progress(done, total)
        talk(done, total)

    return report


def _line(done: int, total: int, bytes_per_s: float) -> str:
    amount = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    if bytes_per_s <= 0:
        return f"{amount}, nothing since the last line"
    left_s = (total - done) / bytes_per_s
    left = f"{left_s:,.0f} s" if left_s < 120 else f"{left_s / 60:,.0f} min"
    return f"{amount}, {bytes_per_s / 1e6:,.3g} MB/s, {left} left"
