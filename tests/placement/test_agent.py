"""The agent on a real Slurm: it looks, submits, probes, reshapes and cancels as the plan says."""

from __future__ import annotations

import asyncio

import pytest

from eventlog.events import AgentReported, JobObserved, PlacementProbed, QueueObserved
from ops.placement import halt
from ops.placement.agent import AgentTwin
from tests.placement.acting import LARGE, SMALL, Acting, job_names, submit
from tests.support.slurm import Cluster


async def test_a_job_is_submitted_seen_running_and_its_end_is_told(
    acting: Acting, cluster: Cluster
) -> None:
    (name,) = job_names(1)
    await acting.plan(submit(name, chain=3, index=1, after="the-one-before"))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
    job = await acting.job(name)
    assert [(job.job_id, name, "R")] == cluster.named(name)
    assert (job.chain, job.index, job.after) == (3, 1, "the-one-before")
    assert job.started_at and job.end_by == job.started_at + 600
    cluster.run("scancel", str(job.job_id))
    await acting.until(lambda jobs: jobs[0].state == "ended", "its end")
    ended = await acting.job(name)
    assert (ended.outcome, ended.started_at) == ("cancelled", job.started_at)


async def test_the_same_wish_of_many_plans_is_one_job(acting: Acting, cluster: Cluster) -> None:
    (name,) = job_names(1)
    assert acting.agent is not None
    desk = acting.agent._clerk.desk  # type: ignore[attr-defined]
    for number in range(1, 4):
        await acting.plan(submit(name))
        await acting.until(lambda jobs, n=number: len(desk.done) == n, "its wish to be done with")
    assert len(cluster.named(name)) == 1 and len(await acting.jobs()) == 1


async def test_a_pending_reason_with_spaces_and_an_expected_start_are_told(
    acting: Acting, cluster: Cluster
) -> None:
    cluster.run("scontrol", "update", "NodeName=alpha[3-4]", "State=DRAIN", "Reason=test")
    names = job_names(2)
    wide = acting.sites.read_text().replace("nodes = 2", "nodes = 4")
    await acting.kill()
    acting.sites.write_text(wide)
    await acting.start()
    await acting.plan(submit(names[0], (4, 1800)))
    await acting.until(lambda jobs: jobs and jobs[0].why_waiting.startswith("Nodes required"), "it")
    job = await acting.job(names[0])
    assert "DRAINED" in job.why_waiting and job.start_said is None
    cluster.run("scontrol", "update", "NodeName=alpha[3-4]", "State=RESUME")
    await acting.until(lambda jobs: jobs[0].phase == "running", "its start")
    await acting.plan(submit(names[1]))
    await acting.until(
        lambda jobs: len(jobs) == 2 and jobs[1].start_said, "the start that backfill expects"
    )
    second = await acting.job(names[1])
    assert second.start_said is not None and second.start_said >= (job.started_at or 0)


async def test_a_waiting_job_is_reshaped_and_keeps_its_place(
    acting: Acting, cluster: Cluster
) -> None:
    cluster.occupy(4)
    (name,) = job_names(1)
    await acting.plan(submit(name, LARGE))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "pending", "a waiting job")
    first = await acting.job(name)
    await acting.plan({"do": "reshape", "job": name, "shape": SMALL})
    await acting.until(lambda jobs: (jobs[0].nodes, jobs[0].walltime_s) == SMALL, "its new shape")
    assert (await acting.job(name)).job_id == first.job_id
    await acting.plan({"do": "cancel", "job": name})
    await acting.until(lambda jobs: jobs[0].state == "ended", "its end")
    assert (await acting.job(name)).outcome == "cancelled" and not cluster.named(name)


async def test_probes_and_a_look_at_the_queue_come_only_when_they_are_wished_for(
    acting: Acting, cluster: Cluster
) -> None:
    cluster.occupy(3)
    await asyncio.sleep(3)
    assert not await acting.events(PlacementProbed) and not await acting.events(QueueObserved)
    await acting.plan({"do": "probe", "shapes": [SMALL, LARGE]})
    now, later = await acting.until_told(PlacementProbed, lambda ones: len(ones) == 2)
    assert (now.outcome, later.outcome) == ("estimated", "estimated")
    assert now.start_epoch_s and later.start_epoch_s
    assert later.start_epoch_s - now.start_epoch_s > 3000, "two nodes are free in an hour only"
    seen = (await acting.until_told(QueueObserved))[-1]
    assert (seen.total_nodes, seen.free_nodes, seen.up) == (4, 1, True)
    assert [(one.nodes, one.ours) for one in seen.running] == [(3, False)]


async def test_a_partition_that_is_down_is_told_though_its_probe_says_now(
    acting: Acting, cluster: Cluster
) -> None:
    cluster.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    await acting.plan({"do": "probe", "shapes": [SMALL]})
    assert (await acting.until_told(PlacementProbed))[0].outcome == "estimated"
    assert not (await acting.until_told(QueueObserved))[-1].up


async def test_the_kill_switch_stops_everything_and_cancels_if_it_is_to(
    acting: Acting, cluster: Cluster
) -> None:
    names = job_names(2)
    await acting.plan(submit(names[0]))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
    halt.halt(acting.root, "the centre asks for it", cancel=False)
    await acting.until_told(AgentReported, lambda ones: ones[-1].state == "halted")
    assert acting.agent is not None
    calls = acting.agent._clerk.scheduler.calls  # type: ignore[attr-defined]
    await acting.plan(submit(names[1]))
    await asyncio.sleep(2)
    assert acting.agent._clerk.scheduler.calls == calls  # type: ignore[attr-defined]
    assert [job.name for job in await acting.jobs()] == [names[0]]
    halt.halt(acting.root, "and its jobs are to go", cancel=True)
    await acting.until(lambda jobs: jobs[0].state == "ended", "the end of its job")
    assert not cluster.named("atoll-t-")
    assert halt.go(acting.root)
    await acting.until(lambda jobs: len(jobs) == 2 and jobs[1].job_id, "the second job")


async def test_nothing_is_left_in_the_queue_when_the_run_is_over(
    acting: Acting, cluster: Cluster
) -> None:
    cluster.occupy(3)
    names = job_names(3)
    shapes = (SMALL, LARGE, LARGE)
    await acting.plan(*[submit(*one) for one in zip(names, shapes, strict=True)])
    await acting.until(
        lambda jobs: [job.phase for job in jobs] == ["running", "pending", "pending"], "three jobs"
    )
    await acting.stop_run()
    await acting.until(lambda jobs: sum(job.state == "ended" for job in jobs) == 2, "waiting ones")
    assert [job.outcome for job in await acting.jobs()] == ["", "cancelled", "cancelled"]
    assert [name for _, name, _ in cluster.named("atoll-t-")] == [names[0]], "it runs, and may"


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    acting: Acting, cluster: Cluster
) -> None:
    await acting.kill()
    (name,) = job_names(1)
    last = await acting.log.last_sequence()
    await acting.plan(submit(name), {"do": "probe", "shapes": [SMALL]})
    await acting.start(is_dry=True)
    await acting.until(
        lambda _: sum(line.startswith("would") for line in acting.said) == 2, "what it would do"
    )
    assert f"would submit 1 nodes for 0:10 h {name}: a test" in acting.said
    assert not cluster.named(name) and await acting.log.last_sequence() == last + 1


async def test_there_is_one_agent_a_site_and_user(acting: Acting) -> None:
    twin = Acting(acting.root, acting.sites, acting.site, acting.log)
    with pytest.raises(AgentTwin, match="runs here already"):
        await twin.start()
    elsewhere = Acting(acting.root.parent / "other", acting.sites, acting.site, acting.log)
    await elsewhere.start()
    assert acting.work is not None
    with pytest.raises(AgentTwin, match="has begun elsewhere"):
        await asyncio.wait_for(asyncio.shield(acting.work), 60)
    (name,) = job_names(1)
    await acting.plan(submit(name))
    await elsewhere.until(lambda jobs: jobs and jobs[0].job_id, "the newer one's job")
    await elsewhere.kill()


@pytest.mark.soak
async def test_an_observation_is_an_event_only_where_something_changed(acting: Acting) -> None:
    (name,) = job_names(1)
    await acting.plan(submit(name))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
    number = len(await acting.events(JobObserved))
    await asyncio.sleep(4)
    assert len(await acting.events(JobObserved)) == number
