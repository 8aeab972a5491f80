"""Do the bounds cover what they say: forecasts in time order, each made before its start is seen.

Every forecast uses only starts before it. The interval of a coverage treats the forecasts of one
cluster (a snapshot of the queue, a day) as one observation: jobs of one snapshot wait for the same
thing, and counting them as independent would flatter us.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, sqrt
from random import Random
from typing import Any

from ops.placement.backfill import starts
from ops.placement.conformal import LEVELS
from ops.placement.estimate import Estimator, Features, Forecast
from ops.placement.machine import TraceJob
from ops.placement.shapes import Basis, PendingJob, QueueSnapshot, RunningJob, Shape
from ops.placement.traces import KTH_NODES, Pair, Waited

BOUNDS = (0.5, 0.9)
LIMIT_EDGES_S = (3600.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0)
DAY_S = 86400.0
CLUSTER_GAP_S = 1800.0  # pairs nearer to each other than this come from one snapshot


@dataclass(frozen=True, slots=True)
class Observation:
    """A job that was submitted, what was said of it, and what it waited."""

    at_s: float
    features: Features
    wait_s: float
    cluster: Hashable


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of starts that came no later than the bound of `level`, with its 95 % interval."""

    level: float
    share: float
    low: float
    high: float
    num: int
    num_clusters: int

    def as_json(self) -> dict[str, Any]:
        """The stable form."""
        return {key: getattr(self, key) for key in self.__slots__}


@dataclass(frozen=True, slots=True)
class Judged:
    """One forecast and what became of it."""

    observation: Observation
    forecast: Forecast


def judged(observations: Sequence[Observation], estimator: Estimator) -> Iterator[Judged]:
    """Every observation with the forecast made at its time; the estimator learns in between."""
    coming: list[tuple[float, int, int, Judged]] = []  # when known, order, level or -1: the start
    for number, one in enumerate(observations):
        _learn(coming, one.at_s, estimator)
        forecast = estimator.forecast(one.features)
        both = Judged(one, forecast)
        passed = sorted({bound for bound in forecast.estimate.waits_s if bound < one.wait_s})
        for level, bound_s in enumerate(passed):
            heappush(coming, (one.at_s + bound_s, number, level, both))
        heappush(coming, (one.at_s + one.wait_s, number, -1, both))
        yield both


def _learn(
    coming: list[tuple[float, int, int, Judged]], until_s: float, estimator: Estimator
) -> None:
    while coming and coming[0][0] <= until_s:
        at_s, _, level, both = heappop(coming)
        one = both.observation
        if level < 0:
            estimator.observe(both.forecast, one.wait_s)
        else:
            estimator.overdue(both.forecast, at_s - one.at_s + 1e-3)


def coverage(found: Sequence[Judged], *, since_s: float = 0.0) -> list[Coverage]:
    """Coverage at BOUNDS of the forecasts from `since_s` on that rest on observed starts."""
    counted = _counted(found, since_s)
    return [_covered(counted, level) for level in BOUNDS] if counted else []


def _counted(found: Sequence[Judged], since_s: float, *, from_prior: bool = False) -> list[Judged]:
    return [
        one
        for one in found
        if one.observation.at_s >= since_s
        and (one.forecast.estimate.basis is Basis.PRIOR) == from_prior
    ]


def _covered(found: Sequence[Judged], level: float) -> Coverage:
    weights: dict[Hashable, float] = defaultdict(float)
    hits: dict[Hashable, float] = defaultdict(float)
    for one in found:
        held = one.observation.wait_s <= one.forecast.estimate.q(level)
        weights[one.observation.cluster] += 1
        hits[one.observation.cluster] += held
    total, num = sum(weights.values()), len(weights)
    share = sum(hits.values()) / total
    spread = sum((hits[key] - share * weights[key]) ** 2 for key in weights)
    error = sqrt(spread * num / max(1, num - 1)) / total
    low, high = max(0.0, share - 1.96 * error), min(1.0, share + 1.96 * error)
    return Coverage(level, share, low, high, len(found), num)


def of_drac(jobs: Sequence[Waited], num: int = 30_000, seed: int = 0) -> list[Observation]:
    """The trace with its sampling undone. Nothing is said of these jobs; those with limits of one
    class resemble each other.

    Who waits w < 24 h is seen at a noon with probability w / 24 h, so each job seen stands for
    1 / probability that came at any time of that day: jobs are drawn by their weight (systematic
    sampling, `num` in all), and each comes at a random time of the day before the noon it was seen.
    """
    random = Random(seed)
    step = sum(job.weight for job in jobs) / num
    due, passed = step * random.random(), 0.0
    found = []
    for job in jobs:
        passed += job.weight
        while due < passed:
            due += step
            at_s = job.submit_s
            if job.wait_s < DAY_S:
                at_s = _noon_after(job.submit_s) - DAY_S * random.random()
            group = sum(job.limit_s > edge for edge in LIMIT_EDGES_S)
            found.append(Observation(at_s, Features(group=group), job.wait_s, int(at_s // DAY_S)))
    return sorted(found, key=lambda one: one.at_s)


def _noon_after(at_s: float) -> float:
    return ((at_s + DAY_S / 2) // DAY_S) * DAY_S + DAY_S / 2


def of_pairs(pairs: Sequence[Pair]) -> list[Observation]:
    """The time of the estimate is the time of the forecast; a start before it is one at it."""
    found, cluster, last_s = [], 0, None
    for pair in pairs:
        if last_s is not None and pair.estimated_s - last_s > CLUSTER_GAP_S:
            cluster += 1
        last_s = pair.estimated_s
        found.append(
            Observation(pair.estimated_s, Features(probe_s=0.0), max(0.0, pair.late_s), cluster)
        )
    return found


def of_kth(jobs: Sequence[TraceJob], every: int = 1) -> list[Observation]:
    """Each `every`-th job, with our own simulation of the queue it came into, as recorded: who ran
    and who waited at that moment, by their limits."""
    return [
        Observation(
            snapshot.now_s,
            Features(simulated_s=starts(snapshot, [Shape(job.nodes, int(job.limit_s))])[0]),
            job.wait_s,
            int(snapshot.now_s // DAY_S),
        )
        for snapshot, job in recorded(jobs, every)
    ]


def recorded(jobs: Sequence[TraceJob], every: int = 1) -> Iterator[tuple[QueueSnapshot, TraceJob]]:
    """(the queue as the trace says it was, the job) at the submission of each `every`-th job."""
    running: list[tuple[float, int]] = []  # a heap of (real end, number)
    waiting: list[tuple[float, int]] = []  # a heap of (real start, number)
    for number, job in enumerate(jobs):
        now_s = job.submit_s
        while waiting and waiting[0][0] <= now_s:
            began_s, which = heappop(waiting)
            heappush(running, (began_s + jobs[which].run_s, which))
        while running and running[0][0] <= now_s:
            heappop(running)
        if number % every == 0:
            yield _queue(now_s, jobs, running, waiting), job
        heappush(waiting, (now_s + job.wait_s, number))


def _queue(
    now_s: float,
    jobs: Sequence[TraceJob],
    running: Sequence[tuple[float, int]],
    waiting: Sequence[tuple[float, int]],
) -> QueueSnapshot:
    run = [jobs[which] for _, which in running]
    used = sum(one.nodes for one in run)
    return QueueSnapshot(
        now_s,
        KTH_NODES,
        max(0, KTH_NODES - used),
        0,
        tuple(RunningJob(one.nodes, one.submit_s + one.wait_s + one.limit_s) for one in run),
        tuple(
            PendingJob(jobs[which].nodes, jobs[which].limit_s)
            for which in sorted(which for _, which in waiting)
        ),
    )


def curve(
    found: Sequence[Judged], *, since_s: float = 0.0, from_prior: bool = False
) -> list[tuple[float, float]]:
    """(level, share of starts within its bound) at each level that is forecast, from starts that
    were seen or from the prior; [] where there are none."""
    counted = _counted(found, since_s, from_prior=from_prior)
    if not counted:
        return []
    return [(level, _covered(counted, level).share) for level in LEVELS]


def num_prior(found: Sequence[Judged]) -> int:
    """How many forecasts rest on nothing seen."""
    return len(found) - len(_counted(found, -inf))
