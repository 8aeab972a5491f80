"""What the leading coordinator does about blobs that are lost though they are needed.

It holds the newest version whole, and nobody else does. Where a blob is gone that a site needs to
come to that version, or that whoever takes over would recover it from, it is stored again as a
snapshot: what came before is then needed by nobody. So a lost blob costs one snapshot, and is
found while there is still somebody who can make up for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from eventlog.blobs import digest_file
from eventlog.errors import BlobDamaged, BlobError, BlobMissing
from leases import retention
from leases.view import View
from outer.versions import save_parameters, save_snapshot
from outer.workshop import Workshop

_NAMED = 3  # lost blobs that a reason names


@dataclass(slots=True)
class Mending:
    """When it is looked for lost blobs, and which there are. It is looked once a lease (K ticks),
    and at once when a site reports another one (R13: what is missing still is found again)."""

    _view: View
    workshop: Workshop
    _looked_ticks: int | None = None
    _reported: set[str] = field(default_factory=set)

    def is_due(self) -> bool:
        """Whether to look now; counts as having looked."""
        run = self._view.run()
        reported = set(retention.reported(self._view.db))
        fresh, self._reported = reported - self._reported, reported
        k = self._view.timing().lost_ticks(run.live)
        if self._looked_ticks is not None and not fresh and run.ticks - self._looked_ticks < k:
            return False
        self._looked_ticks = run.ticks
        return True

    async def look(self) -> dict[str, str]:
        """Blobs that are needed and cannot be had, and what is the matter with each. What a site
        reports is believed when we cannot fetch it either. Raises BlobUnavailable."""
        needed, said = retention.recovered(self._view.db), retention.reported(self._view.db)
        stored = set(await self.workshop.blobs.digests())
        lost = {
            blob: f"{what} ({blob[:12]}) is not in the blob store any more"
            for blob, what in needed.items()
            if blob not in stored
        }
        for blob in needed.keys() & said.keys() - lost.keys():
            if await self._fault(blob) is not None:
                lost[blob] = f"{needed[blob]} ({blob[:12]}) is damaged, says {said[blob]}"
        now = retention.recovered(self._view.db)  # a commit or a release may have come meanwhile
        return {blob: lost[blob] for blob in sorted(lost.keys() & now.keys())}

    async def store_again(self, blob: str) -> None:
        """Store the newest version's own snapshot, or the initial parameters, once more: equal
        states have equal bytes. What is left of a damaged blob makes room for it; nobody can use
        that, so nothing is removed (R20). Raises BlobUnavailable."""
        shop = self.workshop
        path = shop.folder / "again"
        async with shop.lock:
            if shop.state is None:
                return
            if shop.state.version:
                await asyncio.to_thread(save_snapshot, shop.state, path)
            else:
                await asyncio.to_thread(save_parameters, shop.state.parameters, path)
        if (await asyncio.to_thread(digest_file, path)).digest == blob:
            if await self._fault(blob) is BlobDamaged:
                await shop.blobs.release([blob])
            await shop.blobs.put(path)
        path.unlink()

    async def _fault(self, blob: str) -> type[BlobError] | None:
        """Whether a blob is missing or damaged; None: it can be had."""
        path = self.workshop.folder / f"{blob}.looked-at"
        try:
            await self.workshop.blobs.get(blob, path)
        except (BlobDamaged, BlobMissing) as error:
            return type(error)
        finally:
            path.unlink(missing_ok=True)
        return None


def reason(lost: dict[str, str], version: int) -> str:
    """Why a snapshot is stored that was not due."""
    what = sorted(lost.values())
    more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
    named = "; ".join(what[:_NAMED]) + more
    return f"{named}: who needs it starts from version {version}"
