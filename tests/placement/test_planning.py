"""Planners at work: one of them plans, the others go on when it is gone; and why, from the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eventlog.events import (
    PLANNER,
    AgentReported,
    JobObserved,
    JobSubmitted,
    PlacementPlanned,
    PlacementProbed,
    QueuedJob,
)
from eventlog.projector import Projection, run_projection
from leases.table import LeaseTable
from ops.placement.planner import Planner
from ops.placement.why import account, lines
from ops.placement.wording import FRESH_S
from tests.placement.telling import FREE, NOW, SHAPE, Told, intended
from tests.support.history import RUN
from tests.support.scenario import Scenario


async def until(holds: Callable[[], Any], what: str) -> None:
    for _ in range(300):
        if await holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


@dataclass
class Planning:
    """A planner at work."""

    told: Told
    holder: str
    clock: Callable[[], float] = time.time
    said: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            planner = Planner(
                self.told.log,
                projection,
                self.told.sites,
                self.holder,
                clock=self.clock,
                say=self.said.append,
            )
            await planner.run()

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_of_two_planners_one_plans_and_the_other_goes_on_when_it_is_gone(told: Told) -> None:
    one, two = Planning(told, "one"), Planning(told, "two")
    one.start()
    await until(told.plans, "a plan")
    two.start()
    number = len(await told.plans())

    async def went_on() -> bool:
        return len(await told.plans()) >= number + 2

    await until(went_on, "plans that are repeated")
    assert {plan.holder for plan in await told.plans()} == {"one"}
    await one.stop()

    async def took_over() -> bool:
        return (await told.plans())[-1].holder == "two"

    await until(took_over, "the other one's plan")
    one.start()
    await asyncio.sleep(1.5)
    holders = [plan.holder for plan in await told.plans()]
    assert holders == sorted(holders), "they took turns"
    await one.stop()
    await two.stop()


async def test_two_that_begin_at_once_do_not_both_plan(told: Told) -> None:
    planners = [Planning(told, f"p{number}") for number in range(4)]
    for planner in planners:
        planner.start()
    await until(told.plans, "a plan")
    await asyncio.sleep(2)
    assert len({plan.holder for plan in await told.plans()}) == 1
    for planner in planners:
        await planner.stop()


async def test_nothing_new_is_said_when_nothing_has_changed(told: Told) -> None:
    told.sites = told.sites.model_copy(update={"replan": 60})
    planner = Planning(told, "one")
    planner.start()
    await until(told.plans, "a plan")
    await told.agent(AgentReported(state="working", message="still there"))
    await asyncio.sleep(2)
    assert len(await told.plans()) == 1
    await planner.stop()


async def test_a_site_that_comes_or_goes_is_planned_for_at_once(told: Told) -> None:
    """What was seen of the queue grows old meanwhile: whoever plans anew asks for another look."""
    made, clock = Scenario({"tokens": 100_000}), [float(NOW)]
    one = Told(told.sites.model_copy(update={"replan": 3600}), made.log)
    await one.agent(AgentReported(state="working", message="serves lumi"), FREE)
    planner = Planning(one, "one", clock=lambda: clock[0])
    planner.start()

    async def does() -> set[str]:
        plans = await one.plans()
        return {step["do"] for step in plans[-1].actions} if plans else set()

    async def submits() -> bool:
        return "submit" in await does()

    async def looks() -> bool:
        return not await submits() and "observe" in await does()

    for change in (made.arrive, made.depart):
        await until(submits, "a plan that rests on what was seen")
        clock[0] += 2 * FRESH_S
        await asyncio.sleep(1.5)
        assert await submits(), "its own next look is minutes away"
        made.fold()
        change("lumi")
        await until(looks, "another plan")
        await one.agent(FREE.model_copy(update={"at_epoch_s": int(clock[0])}), at=clock[0])
    await planner.stop()


async def test_why_tells_sites_shapes_waits_errors_and_the_next_step(told: Told) -> None:
    blocked = PlacementProbed(
        shape=SHAPE, outcome="unknown", message="Socket timed out", trouble="transient"
    )
    waiting = JobObserved(
        job_name="j-1", job_id="17", phase="pending", nodes=2, why_waiting="Priority"
    )
    await told.agent(intended(1), JobSubmitted(job_name="j-1", job_id="17"), waiting, blocked)
    other = QueuedJob(nodes=8, limit_s=3600, at_epoch_s=NOW + 3600)
    await told.agent(FREE.model_copy(update={"free_nodes": 0, "running": (other,)}))
    planner = Planning(told, "one")
    planner.start()
    await until(told.plans, "a plan")
    await planner.stop()
    with Projection(":memory:", [LeaseTable()], RUN) as projection:
        await run_projection(projection, told.log)
        said = account(projection.db, RUN, time.time())
    (site,) = said["sites"]
    assert site["agent"]["state"] == "working" and site["last_error"] == "Socket timed out"
    assert [job["why_waiting"] for job in site["jobs"]] == ["Priority"]
    assert {tuple(one["shape"]) for one in site["waits"]} == {(1, 3600), (2, 7200)}
    for wait in site["waits"]:
        low, middle, high = wait["waits_s"]
        assert low <= middle <= high
    assert site["next"] and all(step["reason"] for step in site["next"])
    text = "\n".join(lines(said))
    for words in (
        "job 17 pending, 2 nodes",
        "Priority",
        "last error: Socket",
        "next:",
        "starts in",
    ):
        assert words in text
    assert said["plan"]["holder"] == "one"


async def test_only_the_planner_subject_carries_plans(told: Told) -> None:
    plan = PlacementPlanned(actions=(), estimates=(), reason="forged")
    await told.agent(plan)
    with Projection(":memory:", [LeaseTable()], RUN) as projection:
        await run_projection(projection, told.log)
        assert account(projection.db, RUN, 0.0)["plan"] is None
    await told.say(PLANNER, plan)
    assert len(await told.plans()) == 2
