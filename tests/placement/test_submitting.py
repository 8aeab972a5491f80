"""A controller or an agent that dies around a submission: no job twice, none forgotten."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from eventlog.events import AgentReported, JobIntended, JobSubmitted
from leases.jobs import Job
from tests.placement.acting import SMALL, Acting, job_names, submit
from tests.support.slurm import Cluster


def settled(jobs: list[Job]) -> bool:
    """Everything that was intended is in the queue, or known never to have been."""
    return bool(jobs) and all(job.state != "intended" for job in jobs)


async def wrapped(acting: Acting, folder: Path, text: str) -> None:
    """sbatch, from now on, is a script that gets the real one as $REAL."""
    real = next(
        Path(part) / "sbatch"
        for part in os.environ["PATH"].split(":")
        if (Path(part) / "sbatch").exists() and Path(part) != folder
    )
    folder.mkdir(exist_ok=True)
    script = folder / "sbatch"
    script.write_text(f"#!/bin/bash\nREAL={real}\n{text}\n")
    script.chmod(0o755)
    assert acting.agent is not None
    shell = acting.agent._clerk.scheduler.shell  # type: ignore[attr-defined]
    shell.environment["PATH"] = f"{folder}:{os.environ['PATH']}"


async def controller_is_gone(acting: Acting, cluster: Cluster) -> None:
    """The sbatch of an intent has killed it."""
    await acting.until(lambda jobs: jobs and jobs[0].state == "intended", "the intent")
    process = cluster.processes[f"{cluster.name}-ctld"]
    await acting.until(lambda _: process.poll() is not None, "the controller's end", 120)
    cluster.kill_controller()


ON_SUBMISSION = 'if [ "$1" = --parsable ]; then {}; fi; exec "$REAL" "$@"'


async def test_a_controller_killed_between_sbatch_and_its_answer_costs_no_job_and_makes_none(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    """The job is in the queue, its id never came back."""
    (name,) = job_names(1)
    pid = cluster.processes[f"{cluster.name}-ctld"].pid
    saved = f"until grep -qs {name} {cluster.saved_jobs}; do sleep 0.2; done"
    lost = f'"$REAL" "$@" >/dev/null; {saved}; kill -9 {pid}; echo "Socket timed out" >&2; exit 1'
    await wrapped(acting, tmp_path / "bin", ON_SUBMISSION.format(lost))
    await acting.plan(submit(name))
    await controller_is_gone(acting, cluster)
    await asyncio.sleep(2)
    assert [job.state for job in await acting.jobs()] == ["intended"], "silence is no answer"
    cluster.start_controller()
    await acting.until(settled, "the job to be found", 120)
    job = await acting.job(name)
    assert job.state == "submitted", (job, acting.said)
    assert [one[0] for one in cluster.named(name)] == [job.job_id]


@pytest.mark.soak
async def test_a_controller_that_hangs_during_a_submission_and_takes_it_later(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    """sbatch gives up, and the request is carried out when the controller wakes."""
    (name,) = job_names(1)
    pid = cluster.processes[f"{cluster.name}-ctld"].pid
    await wrapped(acting, tmp_path / "bin", ON_SUBMISSION.format(f"kill -STOP {pid}"))
    await acting.plan(submit(name))
    await acting.until(lambda jobs: jobs and jobs[0].state == "intended", "the intent")
    await acting.until_told(AgentReported, lambda ones: ones[-1].state == "troubled")
    assert [job.state for job in await acting.jobs()] == ["intended"]
    cluster.thaw()
    await acting.until(settled, "what became of it", 120)
    job = await acting.job(name)
    assert len(cluster.named(name)) == (job.state == "submitted")
    assert len(await acting.events(JobIntended)) == 1


async def test_a_controller_that_is_killed_during_a_submission(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    (name,) = job_names(1)
    pid = cluster.processes[f"{cluster.name}-ctld"].pid
    await wrapped(acting, tmp_path / "bin", ON_SUBMISSION.format(f"kill -9 {pid}"))
    await acting.plan(submit(name))
    await controller_is_gone(acting, cluster)
    await asyncio.sleep(1)
    cluster.start_controller()
    await acting.until(settled, "the verdict", 120)
    job = await acting.job(name)
    assert len(cluster.named(name)) == (job.state == "submitted")
    if job.state == "ended":
        assert job.outcome == "never_submitted"


async def test_an_agent_killed_between_the_intent_and_sbatch_finds_out_and_submits_no_second(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    (name,) = job_names(1)
    await wrapped(acting, tmp_path / "bin", "sleep 600")
    await acting.plan(submit(name))
    await acting.until(lambda jobs: jobs and jobs[0].state == "intended", "the intent")
    await acting.kill()
    await acting.start()
    await acting.until(settled, "the verdict", 90)
    job = await acting.job(name)
    assert (job.state, job.outcome) == ("ended", "never_submitted") and not cluster.named(name)


async def test_an_agent_killed_between_sbatch_and_the_log_adopts_its_job(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    (name,) = job_names(1)
    text = (
        'if [ "$1" = --parsable ]; then "$REAL" "$@" >/dev/null; sleep 600; fi; exec "$REAL" "$@"'
    )
    await wrapped(acting, tmp_path / "bin", text)
    await acting.plan(submit(name))
    await acting.until(lambda _: cluster.named(name), "its job")
    await acting.kill()
    assert [job.state for job in await acting.jobs()] == ["intended"]
    await acting.start()
    await acting.until(settled, "its adoption")
    job = await acting.job(name)
    assert [(job.job_id, name)] == [one[:2] for one in cluster.named(name)]
    assert len(await acting.events(JobSubmitted)) == 1


async def test_a_job_that_is_there_twice_is_there_once_soon_after(
    acting: Acting, cluster: Cluster, tmp_path: Path
) -> None:
    """sbatch itself asks again where the answer is lost."""
    (name,) = job_names(1)
    text = ON_SUBMISSION.format('"$REAL" "$@" >/dev/null')
    await wrapped(acting, tmp_path / "bin", text)
    await acting.plan(submit(name))
    await acting.until(settled, "its id")
    await acting.until(lambda _: len(cluster.named(name)) == 1, "the other one to go")
    job = await acting.job(name)
    assert [(job.job_id, name)] == [one[:2] for one in cluster.named(name)]


async def test_a_controller_killed_while_it_is_polled_ends_no_job(
    acting: Acting, cluster: Cluster
) -> None:
    (name,) = job_names(1)
    await acting.plan(submit(name))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
    cluster.until(lambda: name.encode() in cluster.saved_jobs.read_bytes(), "its saved state")
    cluster.kill_controller()
    await acting.until_told(AgentReported, lambda ones: ones[-1].state == "troubled")
    assert (await acting.job(name)).state == "submitted", "an error is not the end of a job"
    cluster.start_controller()
    await acting.until_told(AgentReported, lambda ones: ones[-1].state == "working")
    assert (await acting.job(name)).state == "submitted" and len(cluster.named(name)) == 1


@pytest.mark.soak
async def test_an_id_that_another_job_has_now_is_not_taken_for_ours(
    acting: Acting, cluster: Cluster
) -> None:
    (name,) = job_names(1)
    cluster.forget()
    await acting.plan(submit(name))
    await acting.until(lambda jobs: jobs and jobs[0].phase == "running", "a running job")
    job = await acting.job(name)
    await acting.kill()
    cluster.run("scancel", str(job.job_id))
    cluster.forget()
    ids = [cluster.submit("strange", 1, 10) for _ in range(int(job.job_id or 0))]
    assert ids[-1] == job.job_id
    await acting.start()
    await acting.until(lambda jobs: jobs[0].state == "ended", "its end")
    ended = await acting.job(name)
    assert ended.outcome == "unknown" and "another job" in ended.message
    assert any(one[0] == job.job_id for one in cluster.named("strange")), "it was left alone"


async def test_a_refused_submission_is_told_with_its_words_and_not_repeated_at_once(
    acting: Acting, cluster: Cluster
) -> None:
    (name,) = job_names(1)
    await acting.kill()
    text = acting.sites.read_text().replace('partition = "gpu"', 'partition = "nosuch"')
    acting.sites.write_text(text)
    await acting.start()
    await acting.plan(submit(name, SMALL))
    await acting.until(lambda jobs: jobs and jobs[0].state == "ended", "the refusal")
    job = await acting.job(name)
    assert job.outcome == "never_submitted" and "Invalid partition name" in job.message
    report = (await acting.events(AgentReported))[-1]
    assert (report.state, report.trouble) == ("troubled", "ours")
