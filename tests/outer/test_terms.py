"""Who coordinates: claims, standbys, deposed and outdated coordinators (R5, R8, R17)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eventlog.errors import AtollError
from eventlog.events import (
    COORDINATOR,
    CoordinatorElected,
    CoordinatorTick,
)
from eventlog.writer import Stamp, Writer
from outer.arithmetic import ArithmeticDiffers
from outer.standby import Standby
from tests.support.coordinating import ARITHMETIC, Clock, Site, World, entries, rounds, started


async def test_r5_the_first_claim_is_made_at_once_and_one_of_two_wins(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 1})
    async with world.coordinated(world.coordinator("one"), world.coordinator("two")):
        await world.until(lambda: world.view.run().term, "a claim", 2)
        await asyncio.sleep(0.6)
        await world.fold()
        assert world.count("coordinator.elected") == 1
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 1)
        await world.until(lambda: world.state() == "finished", "the end")
    assert world.count("coordinator.elected") == 1


async def test_r8_a_standby_claims_after_k_ticks_of_silence_by_its_own_clock(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 1})
    async with world.coordinated(world.coordinator("one")):
        site = Site(world, "a")
        await site.join()
    clock = Clock()
    async with world.coordinated(world.coordinator("two", clock=clock)):
        await asyncio.sleep(0.6)
        clock.now += 3.9  # K ticks are 4 s
        await asyncio.sleep(0.6)
        await world.fold()
        assert world.view.run().holder == "one"
        clock.now += 0.2
        await world.until(lambda: world.view.run().holder == "two", "a claim", 3)
        await rounds(world, [site], 1)
        await world.until(lambda: world.state() == "finished", "the end")


async def test_r5_a_deposed_coordinator_cannot_append_and_stands_by(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 2})
    said: list[str] = []
    clock = Clock()
    first = world.coordinator("one", say=said.append, clock=clock)
    async with world.coordinated(first):
        site = Site(world, "a")
        await site.join()
        blocks = await site.train()
        term = world.view.run().term
        pen = Writer(world.log, COORDINATOR, chained=True)
        while world.view.run().term == term:
            await world.fold()
            pen.set(*world.view.pen(COORDINATOR))
            claim = CoordinatorElected(holder="two", reason="the test")
            await pen.append([claim], Stamp())
            await world.fold()
        last = await world.log.last_sequence()
        await site.publish(blocks)
        await asyncio.sleep(0.3)
        mine = [r for r in await world.log.read(last) if r.subject == COORDINATOR]
        assert mine == []
        assert any(
            "standing by: " in line and "coordinates, elected by event #" in line for line in said
        )
        clock.now += 1.0
        await asyncio.sleep(0.3)
        clock.now += 10.0
        await world.until(lambda: world.view.run().holder == "one", "a claim in its turn", 3)
        await world.until(lambda: world.view.run().version == 1, "a commit")


async def test_r8_after_a_break_of_its_connection_a_new_term_comes_before_a_tick(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 1})
    breaks = [0]
    async with world.coordinated(world.coordinator("one", breaks=lambda: breaks[0])):
        site = Site(world, "a")
        await site.join()
        await world.until(lambda: world.view.run().ticks >= 1, "a tick")
        breaks[0] += 1
        term = world.view.run().term
        await world.until(lambda: world.view.run().term > term, "a new term")
        await world.until(lambda: world.view.run().term_ticks >= 1, "a tick")
    kinds = [entry.envelope.type for entry in entries(world)]
    second = [i for i, kind in enumerate(kinds) if kind == "coordinator.elected"][1]
    assert "coordinator.tick" in kinds[second:]


async def test_r17_a_coordinator_that_meets_a_newer_one_stops_and_says_so(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 1})
    async with world.coordinated(world.coordinator("one")):
        await world.until(lambda: world.view.run().term, "a claim")
    pen = Writer(world.log, COORDINATOR, chained=True)
    pen.set(*world.view.pen(COORDINATOR))
    (payload,) = pen.payloads([CoordinatorTick(tick=1)], Stamp(term=world.view.run().term))
    newer = payload.replace(b"coordinator.tick", b"coordinator.tock")
    await world.log.append(COORDINATOR, [newer], pen.last)
    last = await world.log.last_sequence()
    with pytest.raises(AtollError, match="too old for the run"):
        await asyncio.wait_for(world.coordinator("two").run(), 5)
    assert await world.log.last_sequence() == last


def test_a_standby_waits_only_while_something_is_owed() -> None:
    standby = Standby()
    assert standby.may_claim(0.0, 0, False, 4.0)  # nobody ever coordinated
    assert not standby.may_claim(0.0, 5, False, 4.0)
    assert not standby.may_claim(10.0, 5, True, 4.0)
    assert not standby.may_claim(13.9, 5, True, 4.0)
    assert standby.may_claim(14.0, 5, True, 4.0)
    standby.heard(14.0)
    assert not standby.may_claim(17.9, 5, True, 4.0)
    assert not standby.may_claim(18.1, 5, False, 4.0)
    assert not standby.may_claim(18.2, 5, True, 4.0)


async def test_a_coordinator_that_computes_otherwise_stops_before_it_claims(tmp_path: Path) -> None:
    """P3: it would commit versions that no site can follow; it names what differs first."""
    world = World(tmp_path, {"rounds": 3})
    await world.found(arithmetic={**ARITHMETIC, "merge": "0" * 64, "step": "1" * 64})
    with pytest.raises(ArithmeticDiffers, match=r"first in 'merge'.*coordinate on"):
        await asyncio.wait_for(world.coordinator().run(), 20)
    await world.fold()
    assert world.count("run.created") == world.projection.position.sequence == 1
