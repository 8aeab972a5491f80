"""The planner's rules, each on a situation made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ops.placement.options import grid
from ops.placement.plan import Estimates, Plan, Situation, plan
from ops.placement.shapes import (
    Action,
    Basis,
    Do,
    JobPhase,
    JobState,
    Limits,
    Reservation,
    Shape,
    SiteProfile,
    WaitEstimate,
)

HOUR = 3600
FULL, HALF, SHORT = Shape(8, 12 * HOUR), Shape(4, 12 * HOUR), Shape(8, 2 * HOUR)
SITE = SiteProfile("a", "batch", (FULL, HALF, SHORT), 1.0)
WORK = 8.0 * 24 * HOUR  # tokens: a day of the full shape


def wait(hours: float, num_observed: int = 400, spread: float = 0.5) -> WaitEstimate:
    """Half of the starts within `hours`, all within (1 ± spread) of it."""
    low, high = hours * HOUR * (1 - spread), hours * HOUR * (1 + spread)
    basis = Basis.CALIBRATED if num_observed else Basis.PRIOR
    return WaitEstimate((0.02, 0.5, 0.98), (low, hours * HOUR, high), basis, "", num_observed)


def job(name: str, shape: Shape = FULL, ends_in_s: float | None = None) -> JobState:
    """One that waits, or runs and ends then."""
    if ends_in_s is None:
        return JobState(name, "a", shape, JobPhase.PENDING, -HOUR)
    began_s = ends_in_s - shape.walltime_s
    return JobState(name, "a", shape, JobPhase.RUNNING, began_s - HOUR, began_s, ends_in_s)


def planned(
    waits: Mapping[Shape, WaitEstimate],
    jobs: Sequence[JobState] = (),
    site: SiteProfile = SITE,
    pending: Mapping[str, WaitEstimate] | None = None,
    reshaped: Mapping[tuple[str, Shape], WaitEstimate] | None = None,
    **changes: object,
) -> Plan:
    """The plan for one site."""
    situation = Situation(0.0, WORK, (site,), tuple(jobs))
    new = {(site.name, shape): estimate for shape, estimate in waits.items()}
    made = replace(situation, **changes)  # type: ignore[arg-type]
    return plan(made, Estimates(new, pending or {}, reshaped or {}))


def submitted(made: Plan) -> list[Shape]:
    return [one.shape for one in made.actions if one.do is Do.SUBMIT and one.shape is not None]


def only(made: Plan) -> Action:
    assert len(made.actions) == 1, made.actions
    return made.actions[0]


def test_a_site_with_nothing_gets_the_full_request_split_in_independent_halves() -> None:
    made = planned({FULL: wait(1), HALF: wait(1)})
    assert submitted(made)[:2] == [HALF, HALF]
    assert {one.chain for one in made.actions[:2]} == {0, 1}
    assert "seldom both long" in made.reason


def test_the_default_is_left_only_for_a_gain_beyond_the_error() -> None:
    sure = planned({FULL: wait(10, spread=0.1), SHORT: wait(0.2, spread=0.1)})
    assert submitted(sure)[0] == SHORT
    unsure = planned({FULL: wait(10, 0, spread=0.9), SHORT: wait(8, 0, spread=0.9)})
    assert submitted(unsure)[0] == FULL
    assert "error" in unsure.reason


def test_a_successor_is_asked_for_when_its_wait_reaches_the_end_of_what_runs() -> None:
    early = planned({FULL: wait(1)}, [job("a-0", ends_in_s=11.5 * HOUR)])
    assert only(early).do is Do.HOLD and "enough" in only(early).reason
    due = planned({FULL: wait(10)}, [job("a-0", ends_in_s=8 * HOUR)])
    first = due.actions[0]
    assert (first.do, first.shape, first.after) == (Do.SUBMIT, FULL, "a-0")


def test_what_waits_already_is_not_asked_for_again() -> None:
    made = planned({FULL: wait(2)}, [job("a-0")], pending={"a-0": wait(2)})
    assert submitted(made) == []


def test_limits_and_budget_hold() -> None:
    waits = {FULL: wait(30), HALF: wait(30), SHORT: wait(30)}
    one = replace(SITE, limits=Limits(max_pending=1))
    assert len(submitted(planned(waits, site=one))) == 1
    assert submitted(planned(waits, submitted_today={"a": 24})) == []
    assert submitted(planned(waits, chain_lengths={"a": 50})) == []
    poor = replace(SITE, limits=Limits(budget_node_hours=20.0))
    assert submitted(planned(waits, site=poor)) == [SHORT]  # 16 node-hours; the next has no room
    assert submitted(planned(waits, site=poor, spent_node_hours={"a": 10.0})) == []


def test_what_runs_and_waits_is_charged_to_the_budget_before_more_is_asked_for() -> None:
    poor = replace(SITE, limits=Limits(budget_node_hours=100.0))
    runs = job("a-0", ends_in_s=11 * HOUR)  # will use 88 node-hours more
    assert submitted(planned({SHORT: wait(11)}, [runs], site=poor)) == []
    rich = replace(SITE, limits=Limits(budget_node_hours=200.0))
    assert submitted(planned({SHORT: wait(11)}, [runs], site=rich))[0] == SHORT


def test_a_run_at_its_target_cancels_all_and_asks_for_nothing() -> None:
    made = planned({FULL: wait(1)}, [job("a-0", ends_in_s=HOUR), job("a-1")], work_left=0.0)
    assert [(one.do, one.job) for one in made.actions] == [
        (Do.CANCEL, "a-0"),
        (Do.CANCEL, "a-1"),
    ]


def test_a_pending_job_is_reshaped_and_not_cancelled_where_a_smaller_shape_starts_sooner() -> None:
    made = planned(
        {},
        [job("a-0")],
        pending={"a-0": wait(40, spread=0.05)},
        reshaped={("a-0", SHORT): wait(0.1, spread=0.05)},
    )
    action = made.actions[0]
    assert (action.do, action.job, action.shape) == (Do.RESHAPE, "a-0", SHORT)


def test_a_job_is_never_reshaped_to_more_than_was_asked() -> None:
    made = planned(
        {},
        [job("a-0", SHORT)],
        pending={"a-0": wait(20, spread=0.05)},
        reshaped={("a-0", FULL): wait(0.1, spread=0.05)},
    )
    assert only(made).do is Do.HOLD


def test_a_job_that_would_stand_at_the_door_is_cancelled() -> None:
    made = planned(
        {}, [job("a-0", ends_in_s=12 * HOUR), job("a-1", SHORT)], pending={"a-1": wait(0.5)}
    )
    assert (only(made).do, only(made).job) == (Do.CANCEL, "a-1")


def test_before_maintenance_shorter_jobs_are_asked_for_that_end_before_it() -> None:
    kept = (Reservation(6.0 * HOUR, 20.0 * HOUR, 8, "maintenance"),)
    asked = grid(SITE, kept, 0.0)
    shorter = [shape for shape in asked if shape not in SITE.shapes]
    assert shorter and all(shape.walltime_s < 6 * HOUR for shape in shorter)
    waits = {FULL: wait(20, spread=0.01)} | {shape: wait(0.1) for shape in shorter}
    made = planned(waits, reservations={"a": kept})
    assert submitted(made)[0] in shorter


def test_a_site_that_is_down_or_stopped_is_left_alone_and_says_why() -> None:
    down = planned({FULL: wait(0)}, down=frozenset({"a"}))
    stopped = planned({FULL: wait(0)}, stopped=frozenset({"a"}))
    assert only(down).do is only(stopped).do is Do.HOLD
    assert only(down).reason != only(stopped).reason


def test_a_site_of_which_nothing_is_known_waits_for_an_estimate() -> None:
    assert only(planned({})).do is Do.HOLD


def test_the_same_situation_gives_the_same_plan() -> None:
    waits = {FULL: wait(3), HALF: wait(2), SHORT: wait(1)}
    jobs = [job("a-0", ends_in_s=HOUR)]
    assert planned(waits, jobs) == planned(waits, jobs)
