"""`atoll bench placement`: what a plan costs, and how fast the study's world goes.

A plan for 10 sites with 200 shapes each, from estimates of a queue of 60 running and 40 waiting
jobs a site, with jobs of ours that run and wait. A year of three sites under the whole planner:
waits drawn one by one, and machines of 100 nodes under EASY backfill with a synthetic background
whose jobs come and go like those of a real one (28,000 a year). Seconds are of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import exp
from random import Random

from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.placement import backfill
from ops.placement.estimate import Estimator, Features
from ops.placement.machine import Machine, TraceJob
from ops.placement.models import Centre, DrawnCentre, LivedCentre, exponential
from ops.placement.plan import Estimates, Situation, plan
from ops.placement.policies import Planning
from ops.placement.shapes import (
    JobPhase,
    JobState,
    Limits,
    PendingJob,
    QueueSnapshot,
    RunningJob,
    Shape,
    SiteProfile,
)
from ops.placement.world import World

NUM_SITES, NUM_SHAPES = 10, 200
HOUR_S, YEAR_S = 3600, 365 * 86400.0
NUM_NODES, JOBS_A_YEAR = 100, 28_000
DAY_S, LOOK_S = 86400.0, 12 * 3600.0
ENDLESS = 1e18  # tokens: the run does not end within the year


def run(quick: bool, progress: Progress) -> Report:
    """Medians of five plans and three years; of one plan and a month with `quick`."""
    num_plans, num_years, span_s = (1, 1, YEAR_S / 12) if quick else (5, 3, YEAR_S)
    plans = _times(lambda k: _plan(k), num_plans, "plans", progress)
    drawn = _times(lambda k: _year(k, span_s, _drawn), num_years, "drawn waits", progress)
    lived = _times(lambda k: _year(k, span_s, _lived), num_years, "machines", progress)
    what = "a month" if quick else "a year"
    return Report(
        "placement",
        (
            _measure(f"plan, {NUM_SITES} sites × {NUM_SHAPES} shapes", plans, 1.0),
            _measure(f"{what} of 3 sites, drawn waits", drawn, 10.0),
            _measure(f"{what} of 3 sites, machines with a queue", lived, 10.0),
        ),
        num_plans,
        (f"years: medians of {num_years} runs; plans at each start and end, and each 12 h",),
    )


def _measure(what: str, seconds: list[float], limit_s: float) -> Measure:
    return measured(
        what,
        seconds,
        "s",
        against="limit",
        against_values=limit_s,
        target=at_most(1.0, "ratio"),
    )


def _times(work: Callable[[int], None], num: int, what: str, progress: Progress) -> list[float]:
    found = []
    for number in range(num):
        began = time.process_time()
        work(number)
        found.append(time.process_time() - began)
        progress(what, number + 1, num)
    return found


def _plan(number: int) -> None:
    """Snapshots, our own simulation, estimates, plan: all that comes after the queries."""
    random = Random(number)
    shapes = tuple(
        Shape(nodes, minutes * 60)
        for nodes in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
        for minutes in range(60, 1260, 60)
    )
    sites = tuple(SiteProfile(f"s{k}", "batch", shapes, 1.0) for k in range(NUM_SITES))
    assert len(shapes) == NUM_SHAPES
    new, pending, jobs = {}, {}, []
    for site in sites:
        estimator, snapshot = Estimator(), _snapshot(random)
        for _ in range(100):
            said_s = random.expovariate(1 / HOUR_S)
            forecast = estimator.forecast(Features(simulated_s=said_s))
            estimator.observe(forecast, said_s * exp(random.gauss(0, 1)))
        for shape, wait_s in zip(shapes, backfill.starts(snapshot, shapes), strict=True):
            forecast = estimator.forecast(Features(simulated_s=wait_s))
            new[site.name, shape] = forecast.estimate
        running = JobState(
            f"{site.name}-0", site.name, shapes[-1], JobPhase.RUNNING, -2.0, -1.0, 7200.0
        )
        waiting = JobState(f"{site.name}-1", site.name, shapes[0], JobPhase.PENDING, -1.0)
        pending[waiting.name] = new[site.name, shapes[0]]
        jobs += [running, waiting]
    made = plan(Situation(0.0, 1e9, sites, tuple(jobs)), Estimates(new, pending))
    if not made.actions:
        raise AssertionError("a plan says something of each site")


def _snapshot(random: Random) -> QueueSnapshot:
    running = tuple(RunningJob(1, random.uniform(60, 86400.0)) for _ in range(60))
    waiting = tuple(
        PendingJob(random.choice((1, 2, 4, 16)), random.uniform(HOUR_S, 86400.0)) for _ in range(40)
    )
    return QueueSnapshot(0.0, NUM_NODES, NUM_NODES - 60, 0, running, waiting)


def _year(number: int, span_s: float, queues: Callable[[int, float], list[Centre]]) -> None:
    shapes = tuple(Shape(nodes, h * HOUR_S) for nodes in (8, 16) for h in (4, 12))
    limits = Limits(max_chain=1_000_000)
    sites = [SiteProfile(f"s{k}", "batch", shapes, 1.0, limits) for k in range(3)]
    world = World(sites, queues(number, span_s), ENDLESS, span_s)
    estimators = {site.name: Estimator() for site in sites}
    planner = Planning("calibrated", estimators, lambda site, shape: None, look_s=LOOK_S)
    if world.run(planner).num_submissions < span_s / DAY_S:
        raise AssertionError("a planner that asks for less than a job a day plans nothing")


def _drawn(number: int, span_s: float) -> list[Centre]:
    draw = exponential(4.0 * HOUR_S)
    return [DrawnCentre(draw, f"{number}/{k}", (0.0, 600.0)) for k in range(3)]


def _lived(number: int, span_s: float) -> list[Centre]:
    return [
        LivedCentre(Machine(NUM_NODES, _background(f"{number}/{k}", span_s), 0.0)) for k in range(3)
    ]


def _background(seed: str, span_s: float) -> list[TraceJob]:
    """About two thirds of the machine used, in jobs of 1 to 64 nodes with far too long limits."""
    random, jobs, at_s = Random(seed), [], 0.0
    while at_s < span_s:
        at_s += random.expovariate(JOBS_A_YEAR / YEAR_S)
        nodes = random.choices((1, 2, 4, 8, 16, 32, 64), (30, 15, 20, 15, 12, 6, 2))[0]
        run_s = min(60 * HOUR_S, exp(random.gauss(7.5, 1.7)))
        jobs.append(TraceJob(at_s, nodes, min(60 * HOUR_S, run_s * random.uniform(1, 6)), run_s, 0))
    return jobs
