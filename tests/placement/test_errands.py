"""What an agent makes of an answer: what is seen, missing, gone, twice, or somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eventlog.codec import pack, unpack
from eventlog.events import JobObserved, JobSubmitted, PlacementPlanned
from leases.jobs import Job, Look
from ops.placement.errands import Desk, Doubt, Stray, ending, num_waiting, tell, wishes
from ops.placement.shapes import Shape
from ops.placement.slurm.ends import Told
from ops.placement.slurm.queues import Phase, Queued

T0 = 1_800_000_000
JOB = Job(
    "j-1", "lumi", 5, "submitted", "17", 2, 3600, "gpu", None, 0, 0, None, "it helps", T0, None,
    None, "", "", None, None, None, None, "", "",
)  # fmt: skip
QUEUED = Queued(
    "17", "PD", Phase.PENDING, 2, 3600, T0, T0 + 900, T0 + 4500, 1, "gpu", "ann", "j-1", "Priority"
)
RUNS = replace(
    QUEUED, state="R", phase=Phase.RUNNING, start_s=T0 + 60, end_s=T0 + 3660, reason="None"
)
TOLD = Told("17", "j-1", "TIMEOUT", Phase.GONE, "", 2, 3600, T0, T0 + 60, T0 + 3660, None)


def test_a_job_that_waits_is_told_with_what_the_backfill_expects() -> None:
    (event,) = tell([JOB], [QUEUED]).events
    assert isinstance(event, JobObserved)
    assert (event.phase, event.why_waiting) == ("pending", "Priority")
    assert (event.expected_start_epoch_s, event.started_epoch_s) == (T0 + 900, None)


def test_a_job_that_runs_is_told_with_its_limit() -> None:
    (event,) = tell([JOB], [RUNS]).events
    assert isinstance(event, JobObserved)
    assert (event.phase, event.started_epoch_s, event.end_by_epoch_s) == (
        "running",
        T0 + 60,
        T0 + 3660,
    )
    assert event.expected_start_epoch_s is None


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({}, False),
        ({"start_s": T0 + 1000}, False),  # the plan moved by less than five minutes
        ({"start_s": T0 + 1300}, True),
        ({"start_s": None}, True),
        ({"reason": "Resources"}, True),
        ({"nodes": 1}, True),
        ({"limit_s": 1800}, True),
        ({"phase": Phase.RUNNING}, True),
        ({"phase": Phase.UNKNOWN}, False),
        ({"nodes": None}, False),
    ],
)
def test_only_news_is_told(change: dict[str, Any], is_news: bool) -> None:
    known = replace(JOB, phase="pending", why_waiting="Priority", start_said=T0 + 900)
    assert bool(tell([known], [replace(QUEUED, **change)]).events) is is_news


def test_an_intent_is_found_by_its_name() -> None:
    intent = replace(JOB, state="intended", job_id=None)
    submitted, seen = tell([intent], [QUEUED]).events
    assert submitted == JobSubmitted(job_name="j-1", job_id="17")
    assert isinstance(seen, JobObserved)


def test_of_two_of_one_name_the_one_that_runs_stays_and_else_the_older() -> None:
    intent = replace(JOB, state="intended", job_id=None)
    twin = replace(QUEUED, job_id="18")
    tale = tell([intent], [twin, QUEUED])
    assert tale.events[0] == JobSubmitted(job_name="j-1", job_id="17")
    assert [one.job_id for one in tale.strays] == ["18"]
    tale = tell([intent], [replace(RUNS, job_id="18"), QUEUED])
    assert tale.events[0] == JobSubmitted(job_name="j-1", job_id="18")
    assert [one.job_id for one in tale.strays] == ["17"]


def test_a_second_one_of_a_submitted_job_goes_whatever_it_does() -> None:
    tale = tell([JOB], [QUEUED, replace(RUNS, job_id="18")])
    assert [one.job_id for one in tale.strays] == ["18"]


def test_what_is_not_shown_is_missing_and_not_gone() -> None:
    tale = tell([JOB], [])
    assert (tale.events, tale.missing) == ((), (JOB,))


def test_an_id_without_its_name_is_somebody_elses() -> None:
    tale = tell([JOB], [replace(QUEUED, name="other")])
    assert tale.missing == (JOB,) and not tale.strays


def test_a_job_that_the_log_ended_must_not_live_on() -> None:
    over = replace(JOB, state="ended", outcome="never_submitted")
    why = "the log says that it ended (never_submitted)"
    assert tell([over], [QUEUED]).strays == (Stray("17", "j-1", why),)
    assert tell([over], [replace(QUEUED, phase=Phase.ENDING)]).strays == ()
    assert tell([over], []).missing == ()


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([TOLD], "walltime"),
        ([replace(TOLD, state="COMPLETED")], "completed"),
        ([replace(TOLD, state="FAILED", exit_code=75)], "completed"),
        ([replace(TOLD, name="other"), replace(TOLD, state="CANCELLED by 0")], "cancelled"),
        ([replace(TOLD, state="RUNNING", phase=Phase.RUNNING)], None),
        ([replace(TOLD, state="PENDING", phase=Phase.PENDING)], None),
        ([replace(TOLD, state="COMPLETING", phase=Phase.ENDING)], None),
        ([replace(TOLD, state="NEW", phase=Phase.UNKNOWN)], None),
        ([], "unknown"),
        ([replace(TOLD, name="other")], "unknown"),
    ],
)
def test_how_a_missing_job_ended(told: list[Told], outcome: str | None) -> None:
    found = ending(JOB, told, T0 + 5000)
    assert (found.outcome if found else None) == outcome


def test_a_job_that_nobody_remembers_had_its_time_if_that_was_over() -> None:
    ran = replace(JOB, phase="running", started_at=T0, end_by=T0 + 3600)
    found = ending(ran, [], T0 + 3601)
    assert found is not None and (found.outcome, found.ended_epoch_s) == ("walltime", T0 + 3600)
    early = ending(ran, [], T0 + 100)
    assert early is not None and (early.outcome, early.ended_epoch_s) == ("unknown", T0 + 100)


def test_a_job_that_never_ran_has_no_start() -> None:
    """Slurm gives a cancelled job that waited its expected start, which is after its end."""
    found = ending(JOB, [replace(TOLD, state="CANCELLED", start_s=T0 + 900, end_s=T0 + 60)], T0)
    assert found is not None and found.started_epoch_s is None


def test_an_intent_counts_as_never_made_after_two_good_looks_and_a_while() -> None:
    doubt = Doubt(100.0)
    doubt.looked()
    assert not doubt.is_settled(1000.0, 300.0), "one look"
    doubt.looked()
    assert not doubt.is_settled(399.0, 300.0), "too early"
    assert doubt.is_settled(400.0, 300.0)


def test_silence_starts_the_wait_anew_and_a_restart_forgets_nothing() -> None:
    intent = replace(JOB, state="intended", job_id=None)
    desk = Desk()
    desk.doubt([intent], 100.0)
    desk.doubts["j-1"].looked()
    desk.doubt([intent], 200.0)
    assert (desk.doubts["j-1"].since, desk.doubts["j-1"].looks) == (100.0, 1)
    desk.silence(300.0)
    assert (desk.doubts["j-1"].since, desk.doubts["j-1"].looks) == (300.0, 0)
    desk.doubt([JOB], 400.0)
    assert desk.doubts == {}


def plan(*actions: dict[str, Any], at: float = 100.0) -> Look:
    event = PlacementPlanned(actions=actions, estimates=(), reason="r")
    said = unpack(pack(event.model_dump(exclude_none=True)))
    return Look("", "plan", "", (9, "p"), at, said)


def test_a_site_sees_its_own_wishes_of_a_plan_that_is_not_old() -> None:
    submit = {"do": "submit", "site": "lumi", "job": "j-2", "shape": [2, 3600], "after": "j-1"}
    probe = {"do": "probe", "site": "lumi", "shapes": [[1, 60], [2, 60]]}
    both = plan(submit, {"do": "submit", "site": "frontier"}, probe)
    first, second = wishes(both, "lumi", 200.0, 600.0)
    assert (first.do, first.job, first.shape, first.after) == (
        "submit",
        "j-2",
        Shape(2, 3600),
        "j-1",
    )
    assert second.shapes == (Shape(1, 60), Shape(2, 60)) and first.key != second.key
    assert wishes(both, "lumi", 701.0, 600.0) == []
    assert wishes(None, "lumi", 0.0, 600.0) == []


def test_who_waits() -> None:
    jobs = [
        replace(JOB, state="intended"),
        replace(JOB, phase="pending"),
        replace(JOB, phase="running"),
        replace(JOB, state="ended"),
    ]
    assert num_waiting(jobs) == 2
