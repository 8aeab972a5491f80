"""The coordinator's hands: what it does with tensors and blobs, in threads, beside its ticks.

Nothing here decides. Every product is a fact that can be made again from log and blobs: verdicts on
deltas, the merge of a logged cut, snapshots. The log says what counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from eventlog.blobs import BlobStore, is_digest
from eventlog.errors import BlobDamaged, BlobMissing
from eventlog.events import RoundCommitted, SnapshotSaved
from leases.rows import Delta, Round, Version
from leases.view import View
from outer import recover
from outer.codecs import DeltaInvalid, NonFinite
from outer.copying import Copying
from outer.facts import Verdict
from outer.judging import examine
from outer.merge import take_step
from outer.schedule import rule_at
from outer.shelf import Shelf
from outer.versions import Digests, OuterState


@dataclass(slots=True)
class Workshop:
    """`folder` holds fetched blobs by digest; it is a cache. `state` is None until recovered. `say`
    hears of snapshots that are passed over, and of fetched files that have rotted."""

    blobs: BlobStore
    folder: Path
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _: None
    state: OuterState | None = None
    digests: Digests | None = None
    _reference: Mapping[str, Tensor] = field(default_factory=dict)  # names and shapes of the model
    _copying: Copying | None = None  # the last snapshot: a merge follows behind it
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one user of the tensors at a time
    _shelf: Shelf = field(init=False)

    def __post_init__(self) -> None:
        self._shelf = Shelf(self.blobs, self.folder, lambda text: self.say(text))

    async def recover(self, view: View) -> None:
        """Bring `state` to the committed version. Raises VersionDiffers and blob errors."""
        async with self.lock:
            version, self.state, self.digests = view.run().version, None, None  # its memory first
            try:
                found = await recover.recovered_at(view, self._shelf, version)
            except (DeltaInvalid, NonFinite, recover.VersionDiffers):
                if not await self._shelf.weed():
                    raise  # no file is to blame
                found = await recover.recovered_at(view, self._shelf, version)
            self.state, self.digests, self._copying = found.state, found.digests, None
            self._reference = {name: one.to("meta") for name, one in self.state.parameters.items()}

    async def verdict(self, delta: Delta) -> Verdict:
        """Whether a delta's blob is there, and can be merged (P8)."""
        try:
            found = await examine(self._shelf, self._reference, delta)
        except (BlobMissing, BlobDamaged) as error:
            return Verdict("blob", str(error))
        except FileNotFoundError:  # another delta of the same blob was refused this very moment
            return await self.verdict(delta)
        if found.code and not self.lock.locked():  # a merge may read it, for another delta
            self._shelf.drop([delta.blob])
        return found

    async def merge(
        self, view: View, round_: Round, deltas: list[Delta], through: int, log_digest: str
    ) -> RoundCommitted:
        """Take the outer step of a cut and store its update; consumes `state` (version + 1). Where
        that fails, `state` is None: it is to be recovered."""
        assert round_.cut is not None
        config, began = view.config().outer, self.clock()
        version, tokens = round_.base_version + 1, view.run().merged_tokens + round_.tokens
        async with self.lock:
            assert self.state is not None and self.state.version == round_.base_version
            files = [
                (await self._shelf.fetch(delta.blob, delta.num_bytes), delta.weight or 0.0)
                for delta in deltas
            ]
            fetched = self.clock()
            update_path = self.folder / f"update-{version}"
            state, self.state, self.digests = self.state, None, None
            self.state, digests = await asyncio.to_thread(
                take_step,
                state,
                files,
                rule=rule_at(view, version, tokens),
                codec=config.update_codec,
                update_path=update_path,
                before=self._copying.wait if self._copying else lambda _: None,
            )
            self.digests = digests
            merged = self.clock()
            update = await self.blobs.put(update_path)
            update_path.unlink()
            await self._keep([path for path, _ in files])
        return RoundCommitted(
            round=round_.round,
            cut=round_.cut,
            version=version,
            update_blob=update.digest,
            update_bytes=update.num_bytes,
            update_codec=config.update_codec,
            parameters_digest=digests.parameters,
            momentum_digest=digests.momentum,
            residual_digest=digests.residual,
            tokens=round_.tokens,
            through=through,
            log_digest=log_digest,
            seconds={
                "fetch": fetched - began,
                "merge": merged - fetched,
                "upload": self.clock() - merged,
            },
            reason=f"{len(deltas)} delta{'s' * (len(deltas) != 1)} "
            f"with {round_.tokens:,} tokens merged",
        )

    async def _keep(self, paths: list[Path]) -> None:
        """P3: what a version is merged from is in the store when it is committed. We read a delta
        that was checked long ago from our own cache; whoever recovers has no such copy. Raises
        BlobDamaged where that has rotted since."""
        for path in paths:
            if not await self.blobs.has(path.name):
                blob = await self.blobs.put(path)
                if blob.digest != path.name:
                    raise BlobDamaged(f"{path} has rotted, and the store has lost that blob")

    async def snapshot(self, row: Version) -> SnapshotSaved | None:
        """Store θ, m and e of a committed version, if `state` still is that version. The next merge
        may begin meanwhile."""
        began = self.clock()
        path = self.folder / f"snapshot-{row.version}"
        async with self.lock:
            if self.state is None or self.state.version != row.version:
                return None
            copying = self._copying = Copying(self.state)
        try:
            await asyncio.to_thread(copying.write, path)
        finally:
            copying.end()
        blob = await self.blobs.put(path)
        path.unlink()
        return SnapshotSaved(
            version=row.version,
            blob=blob.digest,
            num_bytes=blob.num_bytes,
            seconds=self.clock() - began,
            reason=f"recovery and joiners start from version {row.version}",
        )

    def forget(self, delta_blobs: list[str]) -> None:
        """Drop fetched files that are merged or released."""
        self._shelf.drop(delta_blobs)

    async def weed(self, blobs: list[str]) -> bool:
        """Drop those of these fetched files that have rotted; whether there was one."""
        async with self.lock:
            return await self._shelf.weed(blobs)

    def sweep(self) -> None:
        """Drop what a predecessor that was killed has left half made. What it fetched, or half of
        it, stays: it is taken up again, or goes once it is released."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_file() and not is_digest(path.name.removesuffix(".part")):
                path.unlink()
