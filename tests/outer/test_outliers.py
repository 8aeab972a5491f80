"""P8 with the real coordinator: one of three sites delivers NaN, infinities or far too much."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest
import torch

from eventlog.events import DeltaRefused, LeaseReclaimed, RoundCommitted
from outer import recover, tensorfile
from tests.support.coordinating import Site, World, entries, rounds, started, tensors

INNER = {"steps": 6, "batch_sequences": 2, "warmup": 0.0, "final_lr": 1.0}
ROUNDS = {"quorum": 2, "grace_s": 1.0, "deadline_s": 40.0}
HARMS = {"nan": "nonfinite", "infinite": "nonfinite", "1000 times": "outlier", "claim": "form"}


async def harmed(world: World, site: Site, harm: str) -> tuple[str, dict[str, float]]:
    """The blob of a delta of the right form and bad values, and what else its event says."""
    values = tensors(17, 0.1)
    if harm == "1000 times":
        return await site.store({key: 1000 * one for key, one in values.items()}, "bf16"), {}
    if harm == "claim":
        return await site.store(values, "bf16"), {"norm": 1e-3}
    values["bias"][1] = math.nan if harm == "nan" else -math.inf
    path = world.folder / "harmed"
    halves = {f"values/{key}": one.bfloat16() for key, one in values.items()}
    tensorfile.write(halves, path, {"codec": "bf16", "format": 1})
    return (await world.blobs.put(path)).digest, {}


def refusals(world: World) -> list[DeltaRefused]:
    return [one.event for one in entries(world) if isinstance(one.event, DeltaRefused)]


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("harm", HARMS)
async def test_p8_the_others_commit_and_the_blocks_are_merged_later(
    tmp_path: Path, harm: str, after: int
) -> None:
    world = await started(
        tmp_path, {"rounds": after + 3}, inner=INNER, rounds=ROUNDS, snapshots={"retention": "all"}
    )
    async with world.coordinated() as (task,):
        a, b, c = sites = [Site(world, name) for name in "abc"]
        for site in sites:
            await site.join()
        await rounds(world, sites, after)
        version = world.view.run().version
        blocks = await c.train()
        blob, said = await harmed(world, c, harm)
        seq = await c.publish(blocks, blob, **said)
        await a.round()
        await b.round()
        await world.until(lambda: world.view.delta(seq).state == "refused", "a refusal")
        await world.until(lambda: world.view.run().version > version, "a commit")
        assert [one.site for one in world.view.merged_in(after + 1)] == ["a", "b"]
        assert world.view.incarnation(c.token[0]).refusals == 1
        for site in sites:
            await site.catch_up()
        for _ in range(2):
            await rounds(world, sites, 1)
        await world.until(lambda: world.state() == "finished", "the end")
        await asyncio.wait_for(task, 5)
    assert [(one.code, one.values, one.site) for one in refusals(world)] == [
        (HARMS[harm], True, "c")
    ]
    lost = {(one.epoch, one.block) for one in blocks}
    merged = world.projection.db.execute("SELECT epoch, block FROM blocks WHERE state = 'merged'")
    assert lost <= set(merged.fetchall())
    folder = tmp_path / "r"
    state = await recover.state_at(world.view, world.blobs, folder, after + 3, from_start=True)
    assert all(torch.isfinite(one).all() for one in state.parameters.values())


async def test_p8_what_else_the_site_trained_goes_back_too(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 2}, inner=INNER, rounds=ROUNDS)
    async with world.coordinated():
        a, b, c = sites = [Site(world, name) for name in "abc"]
        for site in sites:
            await site.join()
        blocks = await c.train()
        assert len(blocks) > 1
        blob, _ = await harmed(world, c, "1000 times")
        seq = await c.publish(blocks[:1], blob)
        await a.round()
        await b.round()
        await world.until(lambda: world.view.delta(seq).state == "refused", "a refusal")
        await world.until(lambda: world.view.run().version == 1, "a commit")
    taken = [one.event for one in entries(world) if isinstance(one.event, LeaseReclaimed)]
    assert [set(one.blocks) for one in taken] == [{(one.epoch, one.block) for one in blocks[1:]}]


async def test_p2_a_lonely_site_may_begin_with_any_size_and_is_guarded_later(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 5}, inner=INNER, rounds=ROUNDS)
    async with world.coordinated() as (task,):
        site = Site(world, "a")
        await site.join()
        for number in range(3):
            blob = await site.store(tensors(number, 300.0), "bf16")
            version = world.view.run().version
            await site.publish(await site.train(), blob)
            await world.until(lambda v=version: world.view.run().version > v, "a commit")
            await site.catch_up()
        blob = await site.store(tensors(9, 300.0 * 1000), "bf16")
        seq = await site.publish(await site.train(), blob)
        await world.until(lambda: world.view.delta(seq).state == "refused", "a refusal")
        await rounds(world, [site], 2)
        await world.until(lambda: world.state() == "finished", "the end")
        await asyncio.wait_for(task, 5)
    assert [one.code for one in refusals(world)] == ["outlier"]


async def test_p3_a_successor_gives_the_same_verdict(tmp_path: Path) -> None:
    """Killed before it could decide: another coordinator refuses the same delta, for one reason."""
    reasons = []
    for kill in (False, True):
        folder = tmp_path / str(kill)
        folder.mkdir()
        world = await started(folder, {"rounds": 1}, inner=INNER, rounds=ROUNDS)
        sites = [Site(world, name) for name in "abc"]
        async with world.coordinated():
            for site in sites:
                await site.join()
            held = [await site.train() for site in sites]
            blob, _ = await harmed(world, sites[2], "1000 times")
            await sites[2].publish(held[2], blob)
            await sites[0].publish(held[0])
            if not kill:
                await sites[1].publish(held[1])
                await world.until(lambda v=world.view: v.run().version == 1, "a commit")
        if kill:
            await sites[1].publish(held[1])  # with nobody there to decide
            late = world.coordinator("two", clock=lambda: 4 * time.monotonic())
            async with world.coordinated(late):
                await world.until(lambda v=world.view: v.run().version == 1, "a commit")
        reasons.append([(one.code, one.reason) for one in refusals(world)])
        commits = [one.event for one in entries(world) if isinstance(one.event, RoundCommitted)]
        reasons[-1] += [(one.parameters_digest, str(one.tokens)) for one in commits]
    assert reasons[0] == reasons[1]
