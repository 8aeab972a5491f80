"""The planner: what it makes of a log, what it tells agents, and that only one of them plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eventlog.codec import decode
from eventlog.events import (
    OPERATOR,
    PLANNER,
    AgentReported,
    Event,
    JobEnded,
    JobIntended,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementPlanned,
    PlacementProbed,
    QueuedJob,
    QueueObserved,
    RunPaused,
    RunStopped,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection, run_projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View
from ops.placement.planner import Planner
from ops.placement.sites import Sites, load
from ops.placement.why import account, lines
from tests.support.history import RUN, config, created

NOW = int(time.time())
SITE = """
[[site]]
name = "{}"
partition = "gpu"
speed = 0.0001
shapes = [{{nodes = 1, walltime = "1h"}}, {{nodes = 2, walltime = "2h"}}]
{}
"""
SHAPE = JobShape(nodes=2, walltime_s=7200, partition="gpu")
FREE = QueueObserved(
    partition="gpu",
    at_epoch_s=NOW,
    total_nodes=8,
    free_nodes=8,
    down_nodes=0,
    up=True,
    complete=True,
)


@dataclass
class Told:
    """A log, as agents and the operator tell it."""

    sites: Sites
    log: MemoryLog = field(default_factory=lambda: MemoryLog(RUN))

    async def say(self, subject: str, *events: Event, at: float = NOW) -> None:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            await run_projection(projection, self.log)
            pen = Writer(self.log, subject, clock=lambda: at)
            pen.set(*View(projection.db).pen(subject))
            await pen.append(list(events), Stamp())

    async def agent(self, *events: Event, site: str = "lumi", at: float = NOW) -> None:
        await self.say(f"agent.{site}", *events, at=at)

    async def actions(self, now: float = NOW) -> list[dict[str, Any]]:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            planner = Planner(self.log, projection, self.sites, "test", clock=lambda: now)
            return await planner.look()

    async def does(self, now: float = NOW) -> list[tuple[str, Any]]:
        return [(one["do"], one.get("shape")) for one in await self.actions(now)]

    async def plans(self) -> list[PlacementPlanned]:
        entries = [decode(one).event for one in await self.log.read(0, limit=10_000)]
        return [one for one in entries if isinstance(one, PlacementPlanned)]


@pytest.fixture
async def told(tmp_path: Path) -> Told:
    """A run, and an agent at lumi that works and sees an empty queue."""
    path = tmp_path / "sites.toml"
    path.write_text('replan = "1s"\n' + SITE.format("lumi", ""))
    one = Told(load(path))
    await one.say(OPERATOR, created(config({"tokens": 100_000})))
    await one.agent(AgentReported(state="working", message="serves lumi"), FREE)
    return one


def intended(number: int, **more: Any) -> JobIntended:
    fields = {"job_name": f"j-{number}", "shape": SHAPE, "reason": "r", "at_epoch_s": NOW}
    return JobIntended.model_validate({**fields, **more})


def running(number: int, since: int = NOW) -> tuple[Event, ...]:
    return (
        JobSubmitted(job_name=f"j-{number}", job_id=str(number)),
        JobObserved(
            job_name=f"j-{number}",
            job_id=str(number),
            phase="running",
            nodes=2,
            walltime_s=7200,
            started_epoch_s=since,
            end_by_epoch_s=since + 7200,
        ),
    )


async def test_an_empty_queue_gets_a_job_and_a_probe_of_what_is_asked_for(told: Told) -> None:
    actions = await told.actions()
    submits = [one for one in actions if one["do"] == "submit"]
    assert submits and submits[0]["site"] == "lumi" and submits[0]["expected_s"] >= NOW
    assert submits[0]["job"].startswith("atoll-tests-lumi-")
    (probe,) = [one for one in actions if one["do"] == "probe"]
    assert submits[0]["shape"] in probe["shapes"] and len(probe["shapes"]) <= 4


async def test_the_same_log_gives_the_same_plan(told: Told) -> None:
    assert await told.actions() == await told.actions()


async def test_nothing_is_submitted_on_a_look_that_is_old(told: Told) -> None:
    does = [do for do, _ in await told.does(NOW + 2000)]
    assert "observe" in does and "submit" not in does


async def test_a_shape_that_was_probed_just_now_is_not_probed_again(told: Told) -> None:
    for shape in ((1, 3600), (2, 7200)):
        asked = JobShape(nodes=shape[0], walltime_s=shape[1], partition="gpu")
        probe = PlacementProbed(
            shape=asked, outcome="estimated", start_epoch_s=NOW, asked_epoch_s=NOW
        )
        await told.agent(probe)
    does = [do for do, _ in await told.does()]
    assert "submit" in does and "probe" not in does


async def test_a_running_job_gets_a_successor_that_names_it_and_another_name(told: Told) -> None:
    await told.agent(intended(1), *running(1))
    later = NOW + 6500
    await told.agent(FREE.model_copy(update={"at_epoch_s": later}))
    submits = [one for one in await told.actions(later) if one["do"] == "submit"]
    assert submits and submits[0]["after"] == "j-1"
    names = {one["job"] for one in submits}
    assert len(names) == len(submits) and all(name.endswith("-2") for name in sorted(names)[:1])


async def test_two_that_wait_stand_in_two_chains(told: Told) -> None:
    await told.agent(intended(1), JobSubmitted(job_name="j-1", job_id="1"))
    submits = [one for one in await told.actions() if one["do"] == "submit"]
    assert all(one["chain"] != 0 for one in submits)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([AgentReported(state="halted", message="halted: the centre asks")], "the centre asks"),
        ([AgentReported(state="troubled", message="no answer")], "no answer"),
        ([FREE.model_copy(update={"up": False})], "starts nothing"),
        (
            [
                intended(1),
                JobSubmitted(job_name="j-1", job_id="1"),
                JobObserved(
                    job_name="j-1",
                    job_id="1",
                    phase="pending",
                    nodes=2,
                    why_waiting="AssocGrpCPUMinutesLimit",
                ),
            ],
            "AssocGrpCPUMinutesLimit",
        ),
    ],
)
async def test_a_site_that_is_not_well_is_left_alone_and_it_says_why(
    told: Told, events: list[Event], reason: str
) -> None:
    await told.agent(*events)
    actions = await told.actions()
    assert "submit" not in {one["do"] for one in actions}
    (hold,) = [one for one in actions if one["do"] == "hold"]
    assert reason in hold["reason"]


async def test_a_partition_that_is_down_is_looked_at_until_it_is_up(told: Told) -> None:
    await told.agent(FREE.model_copy(update={"up": False}))
    assert "observe" in [do for do, _ in await told.does()]
    await told.agent(FREE)
    assert "submit" in [do for do, _ in await told.does()]


async def test_nodes_that_are_down_rule_a_shape_out(told: Told) -> None:
    seen = {"down_nodes": 7, "free_nodes": 1}
    await told.agent(FREE.model_copy(update=seen))
    shapes = [shape for do, shape in await told.does() if do == "submit"]
    assert shapes and {shape[0] for shape in shapes} == {1}


async def test_jobs_that_fail_fast_stop_the_chain_until_it_is_forgiven(told: Told) -> None:
    for number in range(3):
        await told.agent(
            intended(number),
            JobEnded(job_name=f"j-{number}", outcome="never_submitted", message="bad account"),
        )
    actions = await told.actions()
    assert "submit" not in {one["do"] for one in actions}
    assert any("3 jobs in a row failed fast" in one["reason"] for one in actions)
    later = NOW + 22_000
    await told.agent(FREE.model_copy(update={"at_epoch_s": later}), at=later)
    assert "submit" in [do for do, _ in await told.does(later)]


async def test_a_job_that_ends_at_its_walltime_is_no_failure(told: Told) -> None:
    for number in range(4):
        ended = JobEnded(
            job_name=f"j-{number}", job_id=str(number), outcome="walltime", ended_epoch_s=NOW
        )
        await told.agent(intended(number), *running(number, NOW - 7200), ended)
    assert "submit" in [do for do, _ in await told.does()]


async def test_a_budget_of_node_hours_is_kept(told: Told, tmp_path: Path) -> None:
    limits = "[site.limits]\nbudget_node_hours = 5\n"
    path = tmp_path / "budget.toml"
    path.write_text(SITE.format("lumi", limits))
    told.sites = load(path)
    ended = JobEnded(job_name="j-1", job_id="1", outcome="walltime", ended_epoch_s=NOW)
    await told.agent(intended(1), *running(1, NOW - 7200), ended)  # 2 nodes for 2 h: 4 of 5
    shapes = [shape for do, shape in await told.does() if do == "submit"]
    assert all(nodes * walltime <= 3600 for nodes, walltime in shapes)


@pytest.mark.parametrize("event", [RunPaused(reason="wait"), RunStopped(reason="enough")])
async def test_a_run_that_rests_asks_for_nothing(told: Told, event: Event) -> None:
    await told.say(OPERATOR, event)
    assert {do for do, _ in await told.does()} <= {"hold", "observe"}


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
    said: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            planner = Planner(
                self.told.log, projection, self.told.sites, self.holder, say=self.said.append
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
