"""The coordinator's folder: what is read there stays as long as it is read, and no longer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eventlog.blobs import Progress
from eventlog.dir_blobs import DirBlobs
from leases.rows import Round
from outer.workshop import Workshop
from tests.support.coordinating import Site, rounds, started
from tests.support.scenario import name


class SlowBlobs(DirBlobs):
    """A store that gives one blob only when it may."""

    slow = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        if digest == self.slow:
            self.asked.set()
            await self.may.wait()
        await super().get(digest, target, progress, max_bytes=max_bytes)


async def test_p8_a_delta_that_names_the_blob_of_another_takes_it_from_no_merge(
    tmp_path: Path,
) -> None:
    """While one member of a cut is fetched, a delta is refused that names, with another norm, the
    blob of the other: the merge finds both."""
    world = await started(tmp_path, {"rounds": 3}, rounds={"quorum": 2, "grace_s": 1e3})
    async with world.coordinated():
        sites = [Site(world, "a"), Site(world, "b")]
        for site in sites:
            await site.join()
        await rounds(world, sites, 1)
    (first, second), found = world.view.merged_in(1), []
    cut = Round(2, "closed", 1, 2, 1, 1, 1, (1, name("cut")), first.tokens + second.tokens, 1)
    for number, harm in enumerate((False, True)):
        blobs = SlowBlobs(tmp_path / "blobs")
        shop = Workshop(blobs, tmp_path / f"shop-{number}")
        await shop.recover(world.view)
        (shop.folder / second.blob).unlink()
        blobs.slow = second.blob
        merging = asyncio.create_task(shop.merge(world.view, cut, [first, second], 1, "0" * 64))
        await asyncio.wait_for(blobs.asked.wait(), 10)
        if harm:
            verdict = await shop.verdict(replace(first, norm=1e9))
            assert verdict.code == "form"
        blobs.may.set()
        found.append(await asyncio.wait_for(merging, 10))
    assert found[0].version == found[1].version == 2
    assert found[0].update_blob == found[1].update_blob
    assert found[0].residual_digest == found[1].residual_digest


async def test_what_a_killed_coordinator_left_half_made_is_gone_and_what_it_fetched_is_not(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 3})
    one = world.coordinator()
    folder = one.workshop.folder
    blob = "0" * 64
    kept = {blob, f"{blob}.part"}
    half_made = {".snapshot-5.4711.part", "snapshot-5", "update-6", f"{blob}.looked-at"}
    for left in kept | half_made:
        (folder / left).write_bytes(b"left")
    task = asyncio.create_task(one.run())
    await world.until(lambda: world.view.run().term, "a claim")
    there = {path.name for path in folder.iterdir()}
    assert there >= kept and not there & half_made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
