"""R14 with the real coordinator: a back-off ends though nobody is live, and then the run rests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from leases import policy
from outer import tensorfile
from outer.standby import owed
from tests.support.coordinating import ARITHMETIC, Site, World, tensors
from tests.support.history import joining
from tests.support.scenario import Scenario


async def bad_blob(world: World, number: int) -> str:
    """A delta that is not finite, another each time."""
    values = tensors(number, 0.1)
    values["bias"][1] = float("nan")
    path = world.folder / f"nan-{number}"
    stored = {f"values/{key}": value for key, value in values.items()}
    tensorfile.write(stored, path, {"codec": "fp32", "format": 1})
    return (await world.blobs.put(path)).digest


async def test_r14_a_site_that_delivers_nonsense_rests_for_its_back_off_and_may_come_back(
    tmp_path: Path,
) -> None:
    limits = {"refusals": 2, "backoff_s": 1.5, "quarantine": 9}  # three ticks
    world = World(tmp_path, {"rounds": 1}, limits=limits)
    await world.found()
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        for number in range(2):
            blocks = await site.train()
            seq = await site.publish(blocks, await bad_blob(world, number), codec="fp32")
            await world.until(lambda s=seq: world.view.delta(s).state == "refused", "a refusal")
        await world.until(lambda: not world.view.live(), "its departure")
        (gone,) = world.view.latest()
        assert (gone.code, gone.backoff_until - world.view.run().ticks) == ("unfit", 3)
        site.token = None
        answer = await site.says(joining(arithmetic=ARITHMETIC))
        await world.until(lambda: world.view.answer(answer).state == "refused", "an answer")
        assert world.view.answer(answer).code == "backoff"
        assert not world.view.answer(answer).final
        await world.until(lambda: not world.view.backs_off(), "the end of the back-off", 5)
        ended = world.view.run().ticks
        await asyncio.sleep(1.2)  # two ticks and more
        await world.fold()
        assert world.view.run().ticks == ended, "it ticks though nobody waits for it"
        await site.join()
        await site.round()
        await world.until(lambda: world.view.run().version == 1, "a commit")


def test_r14_a_standby_takes_over_a_back_off_so_that_it_ends() -> None:
    run = Scenario({"epochs": 9}, limits={"backoff_s": 20.0})
    run.arrive("a")
    run.open(a=1)
    for block in range(3):
        run.refuse(run.work("a", block), "a")
    run.decide(*policy.departures(run.view))
    assert not run.view.live() and not run.view.waiting_joins()
    assert owed(run.view)
    run.tick(10)
    assert not owed(run.view)
