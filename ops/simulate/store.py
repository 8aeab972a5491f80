"""The virtual blob store: blobs by digest in memory, behind the same network as the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from eventlog.blobs import BlobRef, Progress, digest_file
from eventlog.errors import BlobDamaged, BlobMissing, BlobTooLarge, BlobUnavailable
from ops.simulate.network import Client

DAMAGED = b""  # what is left of a blob whose bytes are not those of its name any more


class SimBlobs:
    """One process's `BlobStore`; `shared` is what all of them see. `removing` is told what goes.
    A blob of `whole_bytes` or more is a snapshot."""

    def __init__(
        self,
        client: Client,
        shared: dict[str, bytes],
        removing: Callable[[list[str]], None] = lambda _: None,
        whole_bytes: int = 0,
    ) -> None:
        self._client, self._shared, self._removing = client, shared, removing
        self._whole_bytes = whole_bytes

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        """See `BlobStore.put`."""
        await self._client.reach(BlobUnavailable)
        blob = digest_file(source)
        if not self._client.lose():
            self._shared.setdefault(blob.digest, source.read_bytes())
        return blob

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        """See `BlobStore.get`. What is removed while it comes is missing."""
        await self._client.reach(BlobUnavailable)
        num_bytes = len(self._shared.get(digest, DAMAGED))
        if max_bytes is not None and num_bytes > max_bytes:
            raise BlobTooLarge(digest, num_bytes, max_bytes)
        await self._client.carry(num_bytes >= self._whole_bytes)
        if digest not in self._shared:
            raise BlobMissing(f"blob {digest} is not stored")
        if self._shared[digest] == DAMAGED:
            raise BlobDamaged(f"blob {digest} has other bytes than its digest names")
        part = target.with_name(target.name + ".part")
        part.write_bytes(self._shared[digest])
        part.replace(target)

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        await self._client.reach(BlobUnavailable)
        return digest in self._shared

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        await self._client.reach(BlobUnavailable)
        return sorted(self._shared)

    async def unfinished(self) -> dict[str, int]:
        """See `BlobStore.unfinished`: here a blob is stored at once, or not."""
        await self._client.reach(BlobUnavailable)
        return {}

    async def release(self, digests: Iterable[str]) -> None:
        """See `BlobStore.release`."""
        await self._client.reach(BlobUnavailable)
        digests = list(digests)
        self._removing([one for one in digests if self._shared.get(one, DAMAGED) != DAMAGED])
        for digest in digests:
            self._shared.pop(digest, None)

    async def close(self) -> None:
        """Nothing is held."""
