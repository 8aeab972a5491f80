"""What queues can be in: maintenance, drained nodes, no budget, a login shell that talks; and what
the planner makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import PlacementProbed, QueueObserved
from tests.placement.acting import SMALL, Acting, job_names, submit
from tests.placement.conftest import MakeSites
from tests.support.accounting import Accounting
from tests.support.slurm import Cluster, Lab


async def test_a_plan_ends_its_jobs_before_a_maintenance(acting: Acting, cluster: Cluster) -> None:
    cluster.run(
        "scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+20minutes",
        "Duration=120", "Users=root", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
    await acting.plan({"do": "observe"})
    (kept,) = (await acting.until_told(QueueObserved))[-1].reservations
    assert (kept.name, kept.nodes, kept.end_epoch_s - kept.start_epoch_s) == ("maint", 4, 7200)
    asked = [one for one in await acting.decision() if one["do"] == "submit"]
    assert asked, "nothing is asked for at an empty queue"
    ends = [time.time() + one["shape"][1] for one in asked]
    assert max(ends) <= kept.start_epoch_s
    await acting.plan(*asked)
    await acting.until(
        lambda jobs: jobs and jobs[0].phase == "running", "a job that starts before it"
    )


async def test_drained_nodes_are_told_from_a_shape_that_is_impossible(
    acting: Acting, cluster: Cluster
) -> None:
    """sbatch says the same of both; sinfo tells them apart."""
    cluster.run("scontrol", "update", "NodeName=alpha[2-4]", "State=DRAIN", "Reason=test")
    await acting.plan({"do": "observe"}, {"do": "probe", "shapes": [(2, 1800)]})
    (probe,) = await acting.until_told(PlacementProbed)
    assert (probe.outcome, probe.trouble) == ("unknown", "transient")
    assert probe.start_epoch_s is None
    seen = (await acting.until_told(QueueObserved))[-1]
    assert (seen.total_nodes, seen.free_nodes, seen.down_nodes) == (4, 1, 3)
    asked = [one for one in await acting.decision() if one["do"] == "submit"]
    assert asked and {one["shape"][0] for one in asked} == {1}, "two nodes are not to be had"


async def test_a_login_shell_that_prints_a_banner_disturbs_nothing(
    tmp_path: Path, cluster: Cluster, sites_file: MakeSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "me"
    home.mkdir()
    banner = "echo 'Welcome. Job 12 to start at dawn | 7 | PD'; echo 'Mail: 3' >&2; echo 4711\n"
    (home / ".bash_profile").write_text(banner)
    monkeypatch.setenv("HOME", str(home))
    sites = sites_file(cluster, more="login_shell = true")
    acting = Acting(tmp_path / "home", sites, cluster.name)
    await acting.begin()
    try:
        (name,) = job_names(1)
        await acting.plan({"do": "observe"}, {"do": "probe", "shapes": [SMALL]}, submit(name))
        await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
        assert [(await acting.job(name)).job_id] == [one[0] for one in cluster.named(name)]
        (probe,) = await acting.until_told(PlacementProbed)
        assert probe.outcome == "estimated" and (probe.start_epoch_s or 0) > time.time() - 60
        cluster.run("scancel", "-n", name)
        await acting.until(lambda jobs: jobs[0].state == "ended", "its end")
        assert (await acting.job(name)).outcome == "cancelled"
    finally:
        await acting.kill()


@pytest.fixture(scope="module")
def accounted(clusters: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with accounts and budgets, whose controller forgets ended jobs at once."""
    folder = tmp_path_factory.mktemp("accounting")
    munge = clusters.folder / "munge" / "socket"
    books = Accounting(folder, munge, clusters.processes)
    conf = books.start()
    cluster = clusters.add("gamma", 2, munge, accounting=conf, min_job_age_s=2, starts=False)
    cluster.configure()
    for command in (
        ("add", "cluster", "gamma"),
        ("add", "account", "rich", "Cluster=gamma"),
        ("add", "account", "poor", "Cluster=gamma", "GrpTRESMins=cpu=1"),
        ("add", "user", "root", "Account=rich", "Cluster=gamma"),
        ("add", "user", "root", "Account=poor", "Cluster=gamma"),
    ):
        cluster.run("sacctmgr", "-i", *command)
    cluster.start()
    cluster.wait_until_up()
    yield cluster
    cluster.run("scancel", "-u", "root")


async def test_a_job_whose_budget_is_exhausted_is_named_and_its_site_left_alone(
    tmp_path: Path, accounted: Cluster, sites_file: MakeSites
) -> None:
    """A probe says "now" of it; the job never starts."""
    sites = sites_file(accounted, more='account = "poor"')
    acting = Acting(tmp_path / "home", sites, accounted.name)
    await acting.begin()
    try:
        (name,) = job_names(1)
        await acting.plan({"do": "observe"}, {"do": "probe", "shapes": [SMALL]}, submit(name))
        await acting.until(
            lambda jobs: jobs and jobs[0].why_waiting.startswith("AssocGrpCPU"), "the reason"
        )
        (probe,) = await acting.until_told(PlacementProbed)
        assert probe.outcome == "estimated" and (probe.start_epoch_s or 0) <= time.time() + 60
        asked = await acting.decision()
        assert [one["do"] for one in asked] == ["hold"]
        assert "AssocGrpCPUMinutesLimit" in asked[0]["reason"]
    finally:
        await acting.kill()


@pytest.mark.soak
async def test_a_job_that_the_controller_forgot_is_found_in_the_accounts(
    tmp_path: Path, accounted: Cluster, sites_file: MakeSites
) -> None:
    sites = sites_file(accounted, sleep_s=2, more='account = "rich"')
    acting = Acting(tmp_path / "home", sites, accounted.name)
    await acting.begin()
    try:
        (name,) = job_names(1)
        await acting.plan(submit(name))
        await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
        job_id = str((await acting.job(name)).job_id)
        await acting.kill()

        def forgotten() -> bool:
            said = accounted.run("scontrol", "show", "job", job_id, check=False)
            ended = accounted.run("sacct", "-n", "-X", "-j", job_id, "-o", "State")
            return not said and "COMPLETED" in ended

        accounted.until(forgotten, "the controller to forget it", 120)
        await acting.start()
        await acting.until(lambda jobs: jobs[0].state == "ended", "its end")
        job = await acting.job(name)
        assert job.outcome == "completed" and job.started_at and job.ended_at
        assert job.ended_at - job.started_at < 60
    finally:
        await acting.kill()
