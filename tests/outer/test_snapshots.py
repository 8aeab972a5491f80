"""When a version is stored whole, how merges go on meanwhile, what recovery does without it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from outer import codecs, recover
from outer.copying import Copying
from outer.keeping import snapshot_due
from outer.merge import take_step
from outer.nesterov import Rule
from outer.recover import StateLost, VersionDiffers
from outer.versions import OuterState, load_snapshot
from outer.workshop import Workshop
from tests.support.coordinating import Clock, Site, World, rounds, started, tensors

RULE = Rule.of(0.7, 0.9)


# -- when -----------------------------------------------------------------------------------------


async def test_r8_minutes_are_counted_in_ticks_since_the_last_snapshot(tmp_path: Path) -> None:
    # lease_s = 4 gives ticks of 0.5 s: 0.1 minutes are 12 of them.
    settings = {"every_versions": 1000, "every_minutes": 0.1}
    world = await started(tmp_path, {"rounds": 50}, snapshots=settings)
    clock = Clock()
    one = world.coordinator(clock=clock)
    async with world.coordinated(one):
        site = Site(world, "a")
        await site.join()

        async def ticks(num: int) -> None:
            for _ in range(num):
                before = world.view.run().ticks
                clock.now += 0.5
                await world.until(lambda b=before: world.view.run().ticks > b, "a tick")
                await site.catch_up(again=True)  # a sign of life

        await rounds(world, [site], 1)
        assert world.view.run().ticks < 12 and not snapshot_due(world.view)
        await ticks(11 - world.view.run().ticks)
        assert world.view.version(1).snapshot_blob is None
        assert not snapshot_due(world.view)
        await ticks(1)
        await world.until(lambda: world.view.version(1).snapshot_blob, "a snapshot")
        committed = world.view.version(1).ticks
        await rounds(world, [site], 1)
        await ticks(committed + 12 - world.view.run().ticks)
        await world.until(lambda: world.view.version(2).snapshot_blob, "the next snapshot")


async def test_without_minutes_only_versions_count(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 50}, snapshots={"every_versions": 2})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 3)
        await world.until(lambda: world.view.version(2).snapshot_blob, "a snapshot")
    assert [row.version for row in world.view.versions() if row.snapshot_blob] == [2]


# -- while merges go on ---------------------------------------------------------------------------


def test_a_merge_waits_for_each_tensor_until_the_snapshot_holds_it(tmp_path: Path) -> None:
    state = OuterState.initial(tensors(1))
    codecs.encode(tensors(2, 0.1), "fp32", tmp_path / "delta")
    before, copying = state.digests(), Copying(state)
    order: list[str] = []
    gate = threading.Event()

    def merge() -> None:
        def wait(name: str) -> None:
            order.append(f"wants {name}")
            gate.set()
            copying.wait(name)
            order.append(f"changes {name}")

        take_step(
            state, [(tmp_path / "delta", 1.0)], rule=RULE, codec="bf16",
            update_path=tmp_path / "update", before=wait,
        )  # fmt: skip

    thread = threading.Thread(target=merge)
    thread.start()
    assert gate.wait(10)
    assert order == ["wants bias"]  # the snapshot has not begun: nothing may change
    copying.write(tmp_path / "snapshot")
    copying.end()
    thread.join(10)
    assert order == ["wants bias", "changes bias", "wants weight", "changes weight"]
    assert load_snapshot(tmp_path / "snapshot").digests() == before
    assert state.digests() != before


def test_a_merge_does_not_wait_for_a_snapshot_that_failed(tmp_path: Path) -> None:
    state = OuterState.initial(tensors(1))
    copying = Copying(state)
    with pytest.raises(FileNotFoundError):
        copying.write(tmp_path / "no such folder" / "snapshot")
    copying.end()
    copying.wait("bias")
    assert list(tmp_path.iterdir()) == []


async def test_a_snapshot_that_is_written_while_rounds_go_on_is_of_its_version(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 12}, snapshots={"every_versions": 1})
    async with world.coordinated():
        sites = [Site(world, name) for name in "ab"]
        for site in sites:
            await site.join()
        await rounds(world, sites, 8)
        await world.until(lambda: world.view.snapshot_at_most(8), "a snapshot")
    stored = [row for row in world.view.versions() if row.snapshot_blob]
    assert stored
    for row in stored[-2:]:
        path = tmp_path / f"looked-at-{row.version}"
        await world.blobs.get(row.snapshot_blob, path)
        assert load_snapshot(path).digests().residual == row.residual_digest


# -- without it -----------------------------------------------------------------------------------


async def four_versions(folder: Path, retention: str = "all") -> World:
    """Snapshots of versions 1 to 4."""
    settings = {"every_versions": 1, "retention": retention}
    world = await started(folder, {"rounds": 4}, snapshots=settings)
    async with world.coordinated() as (task,):
        site = Site(world, "a")
        await site.join()
        for version in range(1, 5):
            await site.round()
            await world.until(lambda v=version: world.view.run().version == v, "a version")
            await site.catch_up()
            await world.until(lambda v=version: world.view.version(v).snapshot_blob, "a snapshot")
        await asyncio.wait_for(task, 10)
    await world.fold()
    return world


def tear(world: World, version: int) -> None:
    path = world.folder / "blobs" / world.view.version(version).snapshot_blob
    path.write_bytes(path.read_bytes()[:-1])


async def lose(world: World, *versions: int) -> None:
    await world.blobs.release([world.view.version(one).snapshot_blob for one in versions])


async def recovered(world: World, scratch: str) -> list[str]:
    """What is said while version 4 is recovered, whose digests must be the committed ones."""
    said: list[str] = []
    shop = Workshop(world.blobs, world.folder / scratch, say=said.append)
    row = world.view.version(4)
    await shop.recover(world.view)
    found = shop.digests
    assert (found.parameters, found.momentum, found.residual) == (
        row.parameters_digest, row.momentum_digest, row.residual_digest
    )  # fmt: skip
    assert shop.state.digests() == found and shop.state.version == 4
    return said


async def test_p3_a_lost_or_torn_snapshot_is_passed_over_for_the_one_before_and_that_is_said(
    tmp_path: Path,
) -> None:
    world = await four_versions(tmp_path)
    assert await recovered(world, "0") == []
    tear(world, 4)
    (said,) = await recovered(world, "1")
    assert "snapshot of version 4" in said and said.endswith("the one before is tried")
    await lose(world, 3, 2)
    said, *more = await recovered(world, "2")
    assert ["version 3" in more[0], "version 2" in more[1]] == [True, True] and len(more) == 2
    await lose(world, 1)
    assert (await recovered(world, "3"))[-1].endswith("the initial parameters are tried")


async def test_what_retention_keeps_bears_the_loss_of_the_newest_snapshot(tmp_path: Path) -> None:
    world = await four_versions(tmp_path, "recovery")
    await lose(world, 4)
    (said,) = await recovered(world, "0")
    assert "snapshot of version 4" in said
    await lose(world, 3)
    with pytest.raises(StateLost) as caught:
        await recovered(world, "1")
    text = str(caught.value)
    lost = ["version 4 cannot be recovered", "snapshot of version 4", "snapshot of version 3",
            "initial parameters", "Restore blob"]  # fmt: skip
    assert [part for part in lost if part not in text] == [] and "\n" not in text


async def test_a_local_copy_that_is_torn_is_fetched_again(tmp_path: Path) -> None:
    world = await four_versions(tmp_path)
    blob = world.view.version(4).snapshot_blob
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / blob).write_bytes(b"half of a file")
    assert await recovered(world, "0") == []


async def test_a_snapshot_of_other_tensors_than_were_committed_is_passed_over(
    tmp_path: Path,
) -> None:
    """Whole, readable, and wrong: as after a machine that computes otherwise stored it."""
    world = await four_versions(tmp_path)
    row = world.view.version(4)
    (tmp_path / "0").mkdir()
    blobs = tmp_path / "blobs"
    wrong = (blobs / world.view.version(3).snapshot_blob).read_bytes()
    (tmp_path / "0" / row.snapshot_blob).write_bytes(wrong)
    (blobs / row.snapshot_blob).unlink()
    (said,) = await recovered(world, "0")
    assert "version 4" in said
    state = await recover.state_at(world.view, world.blobs, tmp_path / "1", 4, from_start=True)
    assert state.digests().parameters == row.parameters_digest
    with pytest.raises(VersionDiffers):
        recover.check_digests(OuterState.initial({"w": torch.ones(1)}).digests(), row)
