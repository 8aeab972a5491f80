"""Backfill: against cases worked by hand, and against a search through every minute."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from ops.placement.backfill import CONSERVATIVE, Profile, place, planned, probed, starts, survey
from ops.placement.shapes import PendingJob, QueueSnapshot, Reservation, RunningJob, Shape

MINUTE = 60


def queue(**changes: object) -> QueueSnapshot:
    """Ten nodes: six run until 1 h, two until 2 h, two are free; a job of eight waits."""
    made = QueueSnapshot(
        0.0,
        10,
        2,
        0,
        (RunningJob(6, 3600.0), RunningJob(2, 7200.0)),
        (PendingJob(8, 3600.0, job_id="big"),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def by_minutes(snapshot: QueueSnapshot, shape: Shape) -> float:
    """Conservative backfill by looking at every minute of four days: slow, and plainly right."""
    end = 4 * 1440
    free = [snapshot.free_nodes] * end
    for job in snapshot.running:
        for minute in range(int(job.end_by_s) // MINUTE, end):
            free[minute] += job.nodes
    for kept in snapshot.reservations:
        for minute in range(int(kept.start_s) // MINUTE, int(kept.end_s) // MINUTE):
            free[minute] -= kept.nodes
    asked = [(job.nodes, int(job.limit_s) // MINUTE) for job in snapshot.pending]
    at = end
    for nodes, length in [*asked, (shape.nodes, shape.walltime_s // MINUTE)]:
        fits = (m for m in range(end - length) if min(free[m : m + length]) >= nodes)
        at = next(fits)
        for minute in range(at, at + length):
            free[minute] -= nodes
    return at * float(MINUTE)


def test_a_short_job_goes_before_a_large_one_that_it_does_not_delay() -> None:
    short, long = starts(queue(), [Shape(2, 3600), Shape(2, 7200)])
    assert short == 0.0  # over when the eight nodes of the large one are there
    assert long == 7200.0  # it would hold two of the eight: behind the large one, and another
    assert starts(queue(), [Shape(4, 3600)])[0] == 7200.0  # behind the large one


@pytest.mark.parametrize("seed", range(25))
def test_the_plan_is_that_of_a_search_through_every_minute(seed: int) -> None:
    random = Random(seed)
    running = tuple(
        RunningJob(random.randint(1, 4), 60.0 * random.randint(2, 400)) for _ in range(6)
    )
    total = 24
    snapshot = QueueSnapshot(
        0.0,
        total,
        total - sum(job.nodes for job in running),
        0,
        running,
        tuple(PendingJob(random.randint(1, 20), 60.0 * random.randint(5, 300)) for _ in range(6)),
        (Reservation(60.0 * 500, 60.0 * 560, total),) if seed % 2 else (),
    )
    for shape in (Shape(1, 1800), Shape(6, 7200), Shape(24, 3600)):
        assert starts(snapshot, [shape])[0] == by_minutes(snapshot, shape)


def test_a_job_that_would_run_into_maintenance_starts_after_it() -> None:
    kept = queue(pending=(), reservations=(Reservation(1800.0, 9000.0, 10),))
    assert starts(kept, [Shape(2, 1800), Shape(2, 1860)]) == (0.0, 9000.0)


def test_what_does_not_fit_at_all_never_starts() -> None:
    assert starts(queue(), [Shape(11, 60)]) == (inf,)
    assert starts(queue(up=False), [Shape(1, 60)]) == (inf,)


def test_a_held_job_takes_no_place_and_has_no_start() -> None:
    held = queue(pending=(PendingJob(8, 3600.0, held=True),))
    assert planned(held)[1] == [inf]
    assert starts(held, [Shape(4, 3600)]) == (3600.0,)


def test_a_job_that_is_eligible_later_starts_no_sooner() -> None:
    later = queue(pending=(PendingJob(2, 600.0, eligible_s=5000.0),))
    assert planned(later)[1] == [5000.0]


def test_a_pending_job_is_asked_in_its_place_as_other_shapes() -> None:
    seen = survey(queue(), [Shape(2, 60)], {"big": (Shape(8, 3600), Shape(2, 3600))})
    assert seen.own == {("big", Shape(8, 3600)): 3600.0, ("big", Shape(2, 3600)): 0.0}
    assert seen.new == (0.0,)


def test_jobs_that_end_early_bring_a_start_forward() -> None:
    by_limits = starts(queue(), [Shape(4, 3600)])[0]
    early = survey(queue(), [Shape(4, 3600)], shares=[0.5], random=Random(0)).new[0]
    assert early < by_limits


@pytest.mark.parametrize(("end_by_s", "free_s"), [(20.0, 20.0), (-10.0, 20.0), (-3600.0, 1.0)])
def test_a_job_ends_at_its_limit_and_one_that_is_past_it_within_half_a_minute_of_it(
    end_by_s: float, free_s: float
) -> None:
    """Only who is past the limit is late: a floor under all ends would move every close one."""
    full = queue(free_nodes=0, running=(RunningJob(10, end_by_s),), pending=())
    assert starts(full, [Shape(10, 3600)]) == (free_s,)


def test_easy_reserves_for_the_first_only_and_conservative_for_all() -> None:
    ends = [(100.0, 2), (200.0, 2)]
    jobs = [(3, 50.0), (4, 50.0), (1, 180.0)]  # the last one would delay the second, not the first
    assert place(Profile(0.0, 1, ends), jobs, 0.0, 1) == [100.0, inf, inf]
    easy = place(Profile(0.0, 2, ends), [(4, 50.0), (6, 50.0), (2, 150.0)], 0.0, 1)
    every = place(Profile(0.0, 2, ends), [(4, 50.0), (6, 50.0), (2, 150.0)], 0.0, CONSERVATIVE)
    assert easy == [100.0, inf, inf]
    assert every == [100.0, 200.0, 250.0]


def test_the_probe_is_blind_to_walltime_and_adds_the_queue_over_the_size() -> None:
    first_s = 3600.0 + 8 * 3600.0 / 10  # by Slurm's source: (a) + (b)
    assert probed(queue(), Shape(8, 60)) == probed(queue(), Shape(8, 86400)) == first_s
    assert probed(queue(), Shape(11, 60)) is None
