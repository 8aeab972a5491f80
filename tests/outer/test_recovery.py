"""P3: whoever takes over, wherever in the log, computes the same tables and the same tensors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import COORDINATOR, CoordinatorElected, RoundClosed
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.schema import table_digest
from leases.table import LeaseTable
from leases.view import View
from outer.versions import OuterState, digest
from outer.workshop import Workshop
from tests.support.coordinating import Site, World, tensors
from tests.support.scenario import RUN


async def recorded(folder: Path, **snapshots: object) -> World:
    """A run of three rounds with a bad delta, a departure and a late join, to its end."""
    world = World(folder, {"rounds": 3}, snapshots={"retention": "all", **snapshots})
    await world.found()
    async with world.coordinated() as (task,):
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        await a.round()
        await b.round()
        await world.until(lambda: world.view.run().version == 1)
        await a.catch_up()
        await b.leave()
        await a.round()
        await world.until(lambda: world.view.run().version == 2)
        await a.catch_up()
        await b.join()
        bad = await b.publish(await b.train(), "0" * 64)
        await world.until(lambda: world.view.delta(bad).state == "refused")
        await a.round()
        await b.leave()
        await world.until(lambda: world.state() == "finished")
        await asyncio.wait_for(task, 5)
    return world


@pytest.mark.parametrize("every", [1, 2, 100])
async def test_p3_every_prefix_of_a_run_recovers_to_the_same_digests(
    tmp_path: Path, every: int
) -> None:
    world = await recorded(tmp_path, every_versions=every)
    records = await world.log.read(0)
    truth = Projection(":memory:", [LeaseTable()], RUN)
    zero = digest(OuterState.initial(tensors(0)).momentum)
    expected = {0: (digest(tensors(0)), zero, zero)}
    for row in world.view.versions():
        expected[row.version] = (row.parameters_digest, row.momentum_digest, row.residual_digest)
    for position, record in enumerate(records, start=1):
        truth.apply([record])
        projection = Projection(":memory:", [LeaseTable()], RUN)
        projection.apply(records[:position])
        assert table_digest(projection.db) == table_digest(truth.db)
        view = View(projection.db)
        shop = Workshop(world.blobs, tmp_path / f"fresh-{position}")
        await shop.recover(view)
        found = shop.digests
        assert found is not None
        held = (found.parameters, found.momentum, found.residual)
        assert held == expected[view.run().version], f"after sequence {position}"
    assert view.run().version == 3 and set(expected) == {0, 1, 2, 3}


async def test_p3_a_successor_finishes_a_logged_cut_to_the_same_bits(tmp_path: Path) -> None:
    world = await recorded(tmp_path)
    records = await world.log.read(0)
    cuts = [r for r in records if isinstance(decode(r).event, RoundClosed)]
    assert len(cuts) == 3
    for version, cut in enumerate(cuts, start=1):
        again = await continued(world, records[: cut.sequence])
        row, original = again.version(version), world.view.version(version)
        assert row is not None and original is not None
        for part in ("parameters_digest", "momentum_digest", "residual_digest", "update_blob"):
            assert getattr(row, part) == getattr(original, part)


async def continued(world: World, prefix: list[Record]) -> View:
    """What a new coordinator makes of a prefix of the log that ends in a cut."""
    log = MemoryLog(RUN)
    for record in prefix:
        last = await log.last(record.subject)
        await log.append(record.subject, [record.payload], last.sequence if last else 0)
    other = world.coordinator("successor", log)
    view = View(other.projection.db)
    other.projection.apply(await log.read(0))
    version = view.run().version
    pen = Writer(log, COORDINATOR, chained=True)
    pen.set(*view.pen(COORDINATOR))
    await pen.append([CoordinatorElected(holder="gone", reason="dies at once")], Stamp())
    clock = [0.0]
    other.clock = lambda: clock[0]
    task = asyncio.create_task(other.run())
    for _ in range(2000):
        if view.run().version > version:
            break
        clock[0] += 0.05
        await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert view.run().version == version + 1 and view.run().holder == "successor"
    return view


async def test_a_cut_whose_delta_is_gone_is_voided_and_the_round_goes_on(tmp_path: Path) -> None:
    """A successor checks the members of a cut itself before it merges them."""
    world = World(tmp_path, {"rounds": 1})
    await world.found()
    async with world.coordinated():
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        blocks = await a.train()
        lost = await b.round()
        await b.leave()
        await world.fold()
        left = await world.log.last_sequence()
        kept = await a.publish(blocks)
        await world.until(lambda: world.view.run().version == 1)
    records = await world.log.read(0)
    (cut,) = [r for r in records if isinstance(decode(r).event, RoundClosed)]
    assert left < cut.sequence
    await world.blobs.release([world.view.delta(lost).blob])
    again = await continued(world, records[: cut.sequence])
    assert again.delta(lost).state == "refused"
    assert [delta.token[0] for delta in again.merged_in(1)] == [kept]


async def test_p3_what_was_merged_is_in_the_store_though_it_was_lost_after_its_check(
    tmp_path: Path,
) -> None:
    world = World(
        tmp_path,
        {"rounds": 2},
        snapshots={"retention": "all", "every_versions": 100},
        rounds={"quorum": 2, "grace_s": 60.0},
    )
    await world.found()
    one = world.coordinator()
    async with world.coordinated(one):
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        mine = await a.train()
        theirs = await b.train()
        checked = await a.publish(mine)
        await world.until(lambda: checked in one._duties.verdicts, "a verdict")
        delta = world.view.delta(checked)
        assert delta is not None
        await world.blobs.release([delta.blob])  # the store loses it; the coordinator has a copy
        await b.publish(theirs)
        await world.until(lambda: world.view.run().version == 1, "a version")
    shop = Workshop(world.blobs, tmp_path / "another-machine")
    await shop.recover(world.view)
    row = world.view.version(1)
    assert row is not None and shop.digests is not None
    assert shop.digests.parameters == row.parameters_digest
