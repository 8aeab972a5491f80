"""Rules of placement: who may speak of a job, and that a job is intended and submitted once."""

from __future__ import annotations

import pytest

from eventlog.events import (
    AgentReported,
    Event,
    Heartbeat,
    JobEnded,
    JobIntended,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementPlanned,
    PlacementProbed,
    RunStopped,
)
from eventlog.writer import Stamp
from leases.jobs import jobs, looks, plan
from tests.support.scenario import Scenario

SHAPE = JobShape(nodes=2, walltime_s=3600, partition="gpu")
INTENDED = JobIntended(job_name="j-1", shape=SHAPE, reason="it helps", expected_start_epoch_s=900)
SUBMITTED = JobSubmitted(job_name="j-1", job_id="17")
ENDED = JobEnded(job_name="j-1", job_id="17", outcome="walltime", ended_epoch_s=4600)


def agent(run: Scenario, event: Event, name: str = "lumi") -> str:
    return run.append(f"agent.{name}", [event], Stamp())[0]


def test_a_job_is_intended_submitted_seen_and_ended() -> None:
    run = Scenario()
    assert agent(run, INTENDED) == ""
    assert agent(run, SUBMITTED) == ""
    seen = JobObserved(
        job_name="j-1", job_id="17", phase="running", nodes=1, walltime_s=600, started_epoch_s=1000
    )
    assert agent(run, seen) == ""
    (job,) = jobs(run.projection.db, "lumi")
    assert (job.state, job.phase, job.job_id) == ("submitted", "running", "17")
    assert (job.nodes, job.walltime_s, job.expected_at, job.started_at) == (1, 600, 900, 1000)
    assert agent(run, ENDED) == ""
    assert [one.outcome for one in jobs(run.projection.db, state="ended")] == ["walltime"]
    assert jobs(run.projection.db, "lumi")[0].started_at == 1000


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ([INTENDED], INTENDED, "intended before"),
        ([INTENDED, SUBMITTED, ENDED], INTENDED, "intended before"),
        ([], SUBMITTED, "never intended"),
        ([INTENDED, SUBMITTED], SUBMITTED, "is submitted as 17"),
        ([INTENDED, SUBMITTED], JobSubmitted(job_name="j-1", job_id="18"), "is submitted as 17"),
        ([INTENDED, SUBMITTED, ENDED], SUBMITTED, "is ended as 17"),
        (
            [INTENDED, SUBMITTED],
            JobObserved(job_name="j-1", job_id="18", phase="pending", nodes=1),
            "is submitted as 17",
        ),
        (
            [INTENDED],
            JobObserved(job_name="j-1", job_id="17", phase="pending", nodes=1),
            "intended",
        ),
        ([], ENDED, "never intended"),
        ([INTENDED, SUBMITTED, ENDED], ENDED, "is ended"),
        (
            [INTENDED, SUBMITTED],
            JobEnded(job_name="j-1", job_id="18", outcome="failed"),
            "is submitted as 17",
        ),
    ],
)
def test_what_does_not_follow_from_what_was_said_is_void(
    before: list[Event], event: Event, why: str
) -> None:
    run = Scenario()
    for one in before:
        assert agent(run, one) == ""
    rows = jobs(run.projection.db)
    assert why in agent(run, event)
    assert jobs(run.projection.db) == rows


def test_an_intent_that_never_reached_the_queue_ends_without_an_id() -> None:
    run = Scenario()
    assert agent(run, INTENDED) == ""
    assert agent(run, JobEnded(job_name="j-1", outcome="never_submitted")) == ""
    assert "is ended" in agent(run, SUBMITTED)


def test_an_agent_may_not_speak_of_anothers_job() -> None:
    run = Scenario()
    assert agent(run, INTENDED) == ""
    assert "never intended" in agent(run, SUBMITTED, "frontier")
    assert "intended before" in agent(run, INTENDED, "frontier")
    assert [job.state for job in jobs(run.projection.db)] == ["intended"]


@pytest.mark.parametrize("subject", ["site.lumi", "operator", "planner", "coordinator"])
def test_only_agents_speak_of_jobs(subject: str) -> None:
    run = Scenario()
    assert (
        "may not come from" in run.append(subject, [INTENDED], Stamp(term=run.view.run().term))[0]
    )


@pytest.mark.parametrize("subject", ["agent.lumi", "operator", "site.lumi"])
def test_only_the_planner_plans(subject: str) -> None:
    run = Scenario()
    event = PlacementPlanned(actions=(), estimates=(), reason="nothing to do")
    assert "may not come from" in run.append(subject, [event], Stamp())[0]


def test_an_agent_is_no_site_and_a_site_no_agent() -> None:
    run = Scenario()
    beat = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
    assert "may not come from" in agent(run, beat)


def test_the_newest_look_of_each_thing_stays() -> None:
    run = Scenario()
    other = SHAPE.model_copy(update={"nodes": 4})
    for shape, start in ((SHAPE, 100), (other, 200), (SHAPE, 300)):
        assert (
            agent(run, PlacementProbed(shape=shape, outcome="estimated", start_epoch_s=start)) == ""
        )
    said = [(one.said["shape"]["nodes"], one.said["start_epoch_s"]) for one in probes(run)]
    assert said == [(4, 200), (2, 300)]
    assert agent(run, AgentReported(state="troubled", message="no account")) == ""
    assert [one.said["message"] for one in looks(run.projection.db, "report")] == ["no account"]


def test_an_unknown_start_stays_unknown() -> None:
    run = Scenario()
    assert agent(run, PlacementProbed(shape=SHAPE, outcome="unknown")) == ""
    assert "start_epoch_s" not in probes(run)[0].said


def test_the_plan_in_force_is_the_newest() -> None:
    run = Scenario()
    assert plan(run.projection.db) is None
    for reason in ("first", "second"):
        event = PlacementPlanned(actions=({"do": "hold"},), estimates=(), reason=reason)
        assert run.append("planner", [event], Stamp()) == [""]
    newest = plan(run.projection.db)
    assert newest is not None and newest.said["reason"] == "second" and newest.token == run.last


def test_jobs_move_no_block_and_end_after_the_run() -> None:
    """What becomes of the queue is told to the end, after the run's too."""
    run = Scenario()
    assert agent(run, INTENDED) == ""
    blocks = run.projection.db.execute("SELECT count(*) FROM blocks").fetchone()
    assert run.operator(RunStopped(reason="enough")) == ""
    assert agent(run, SUBMITTED) == "" and agent(run, ENDED) == ""
    assert run.projection.db.execute("SELECT count(*) FROM blocks").fetchone() == blocks


def probes(run: Scenario) -> list:
    return looks(run.projection.db, "probe")
