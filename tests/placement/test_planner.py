"""The planner: what it makes of a log, what it tells agents, and that only one of them plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.events import (
    OPERATOR,
    AgentReported,
    Event,
    JobEnded,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementProbed,
    RunPaused,
    RunStopped,
)
from ops.placement.sites import load
from tests.placement.telling import FREE, NOW, SITE, Told, intended, running


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


async def test_a_limit_that_passes_by_itself_does_not_stop_the_planning(told: Told) -> None:
    waits = JobObserved(
        job_name="j-1", job_id="1", phase="pending", nodes=2, why_waiting="QOSMaxJobsPerUserLimit"
    )
    await told.agent(intended(1), JobSubmitted(job_name="j-1", job_id="1"), waits)
    holds = [one["reason"] for one in await told.actions() if one["do"] == "hold"]
    assert not any("QOSMaxJobs" in reason for reason in holds)


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
