"""What a blob store holds that no event names: uploads that were given up, blobs whose event never
came. Found by looking now and then; whether it may be removed is decided in `outer.keeping`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eventlog.blobs import BlobStore
from leases import retention
from leases.view import View

_WHOLE = -1  # the amount of a blob that is complete: it grows no more


@dataclass(slots=True)
class Orphans:
    """`since`: by digest, how much of it is stored, and the tick of this term since which that has
    been so. An upload that goes on grows, and so is always new."""

    since: dict[str, tuple[int, int]] = field(default_factory=dict)
    _looked: int | None = None  # the tick of the last look

    def due(self, view: View) -> bool:
        """Whether it is time for a look: twice while one upload may last."""
        tick = view.run().term_ticks
        return self._looked is None or 2 * (tick - self._looked) >= longest_upload_ticks(view)

    async def look(self, blobs: BlobStore, view: View) -> None:
        """Compare what is stored with what the log names. Raises BlobUnavailable."""
        tick = view.run().term_ticks
        stored = dict.fromkeys(await blobs.digests(), _WHOLE) | await blobs.unfinished()
        before, self.since = self.since, {}
        for blob in retention.unnamed(view.db, stored):
            amount, since = before.get(blob, (None, tick))
            self.since[blob] = (stored[blob], since if amount == stored[blob] else tick)
        self._looked = tick

    def ticks(self) -> dict[str, int]:
        """By digest, the tick since which it has not changed."""
        return {blob: tick for blob, (_, tick) in self.since.items()}

    def forget(self, blobs: Iterable[str]) -> None:
        """They are released."""
        for blob in blobs:
            self.since.pop(blob, None)


def longest_upload_ticks(view: View) -> int:
    """Ticks after which an upload that has not grown has been given up: a site that is not heard
    of for so long has lost its lease, and one that is heard of delivers sooner (R10)."""
    return view.timing().ticks(view.config().limits.transfer_s)
