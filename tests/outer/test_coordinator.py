"""The coordinator as a whole: it leads a run to its end, refuses what is bad, rests, is fenced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from eventlog.events import (
    COORDINATOR,
    BlobsReleased,
    RunStopped,
)
from eventlog.writer import Stamp, Writer
from leases import retention
from outer import recover, tensorfile
from tests.support.coordinating import Clock, Site, World, entries, rounds, started, tensors
from tests.support.scenario import name


async def test_a_run_goes_from_its_founding_to_its_target(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 3})
    async with world.coordinated() as (task,):
        sites = [Site(world, "a"), Site(world, "b")]
        for site in sites:
            await site.join()
        await rounds(world, sites, 3)
        await world.until(lambda: world.state() == "finished", "the end")
        await asyncio.wait_for(task, 5)
    run = world.view.run()
    assert (run.version, run.round) == (3, 3)
    assert run.merged_tokens == sum(version.tokens for version in world.view.versions())
    assert all(one.mismatches == 0 for one in world.view.latest())
    state = await recover.state_at(world.view, world.blobs, tmp_path / "r", 3, from_start=True)
    assert state.digests().parameters == world.view.version(3).parameters_digest
    for site in sites:
        for key, value in site.model.parameters.items():
            assert torch.equal(value, state.parameters[key])


def bad_deltas() -> list[str]:
    return ["nonfinite", "shape", "names", "codec", "torn", "missing", "huge"]


async def make_bad(world: World, site: Site, how: str) -> tuple[str, str]:
    """The blob of a delta that cannot be merged, and the code it is refused by."""
    good = tensors(5, 0.1)
    if how == "nonfinite":
        path = world.folder / "nan"
        good["bias"][1] = float("nan")
        stored = {f"values/{key}": value for key, value in good.items()}
        tensorfile.write(stored, path, {"codec": "fp32", "format": 1})
        return (await world.blobs.put(path)).digest, "nonfinite"
    if how == "torn":
        path = world.folder / "torn"
        path.write_bytes(b"not a tensor file")
        return (await world.blobs.put(path)).digest, "blob"
    if how == "missing":
        return name("nowhere"), "blob"
    if how == "shape":
        good["bias"] = torch.zeros(4)
    if how == "names":
        good["more"] = torch.zeros(4)
    if how == "huge":
        good["bias"][0] = 3e38
        return await site.store(good, "fp32"), "outlier"
    return await site.store(good, "bf16" if how == "codec" else "fp32"), "form"


@pytest.mark.parametrize("how", bad_deltas())
async def test_p8_a_bad_delta_is_refused_by_name_and_the_round_commits_without_it(
    tmp_path: Path, how: str
) -> None:
    world = await started(tmp_path, {"rounds": 1})
    async with world.coordinated() as (task,):
        good, bad = Site(world, "a"), Site(world, "b")
        await good.join()
        await bad.join()
        blob, code = await make_bad(world, bad, how)
        blocks = await bad.train()
        seq = await bad.publish(blocks, blob, codec="fp32")
        await world.until(lambda: world.view.delta(seq).state == "refused", "a refusal")
        await good.round()
        await bad.leave()
        await world.until(lambda: world.state() == "finished", "the end")
        await asyncio.wait_for(task, 5)
    refusals = [
        entry.event
        for entry in entries(world)
        if entry.event is not None and entry.event.type == "delta.refused"
    ]
    assert [one.code for one in refusals] == [code]
    assert [delta.site for delta in world.view.merged_in(1)] == ["a"]


async def test_p2_with_no_site_live_nothing_is_appended_and_who_comes_is_admitted(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 2})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 1)
        await site.train()
        await site.leave()
        await asyncio.sleep(0.1)
        last = await world.log.last_sequence()
        await asyncio.sleep(1.2)  # two ticks and more
        assert await world.log.last_sequence() == last
        await site.join()
        await rounds(world, [site], 1)
        await world.until(lambda: world.state() == "finished", "the end")


async def test_r2_a_stopped_run_finishes_when_its_sites_have_left(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 9})
    async with world.coordinated() as (task,):
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 1)
        blocks = await site.train()
        await world.operator(RunStopped(reason="enough"))
        await site.publish(blocks)
        await world.until(lambda: world.view.run().version == 2, "the last commit")
        await site.leave()
        await world.until(lambda: world.state() == "finished", "the end")
        await asyncio.wait_for(task, 5)
    assert world.view.version(2).snapshot_blob is not None


async def test_r20_blobs_go_only_after_their_release_and_a_successor_removes_what_is_left(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 9}, snapshots={"every_versions": 1})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        seen: set[str] = set()
        for _ in range(3):
            seen |= set(await world.blobs.digests())
            await rounds(world, [site], 1)
            await world.fold()
            gone = seen - set(await world.blobs.digests())
            await world.fold()
            assert gone <= set(retention.released(world.view.db))
        await world.until(
            lambda: len([v for v in world.view.versions() if v.snapshot_blob]) == 3, "snapshots"
        )
        await world.until(lambda: bool(retention.released(world.view.db)), "a release")
        await _until_gone(world)
    copy = world.folder / "again"
    copy.write_bytes(b"left by a coordinator that died before it could remove it")
    left = await world.blobs.put(copy)
    await _release_in_the_log(world, left.digest)
    assert await world.blobs.has(left.digest)
    clock = Clock()
    async with world.coordinated(world.coordinator("two", clock=clock)):
        await asyncio.sleep(0.5)
        clock.now += 100.0
        await world.until(lambda: world.view.run().holder == "two", "a claim", 3)
        await _until_gone(world)
    assert not await world.blobs.has(left.digest)
    needed, _ = retention.split(world.view.db, 0)
    assert needed <= set(await world.blobs.digests())


async def _until_gone(world: World) -> None:
    """Everything that the log has released is removed, soon."""
    for _ in range(1000):
        await world.fold()
        if not set(retention.released(world.view.db)) & set(await world.blobs.digests()):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("released blobs are still stored")


async def _release_in_the_log(world: World, blob: str) -> None:
    await world.fold()
    pen = Writer(world.log, COORDINATOR, chained=True)
    pen.set(*world.view.pen(COORDINATOR))
    await pen.append(
        [BlobsReleased(blobs=(blob,), reason="the test")], Stamp(term=world.view.run().term)
    )
