"""What the study is about: sites, shapes and limits for each model of waits, and each replica's
queues.

Durations are in mean waits of the model. The shapes of a model are the same for all policies, and
no policy has more nodes at work at a site than the full shape's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ops.placement import coverage, models, traces
from ops.placement.estimate import Estimator, Features
from ops.placement.machine import Machine, TraceJob
from ops.placement.models import Centre, DrawnCentre, LivedCentre
from ops.placement.options import full_shape
from ops.placement.shapes import Limits, Shape, SiteProfile
from ops.placement.traces import Waited

MODELS = ("exponential", "lognormal", "bootstrapped", "endogenous")
MEAN_S = 4 * 3600.0  # of drawn waits; everything is in units of it
NO_LIMIT_S = 10 * 365 * 86400
SIGMA = 1.5  # of lognormal waits: heavy-tailed as those of published traces
NUM_PAST = 100  # starts seen at each centre before the run
HOUR_S = 3600
LATE_S = (-1310.0, 0.0, 60.0, 120.0, 180.0, 900.0, 2400.0, 7800.0, 15120.0)  # published quantiles


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, ready to be run: `queues(seed, replica)` gives the centres of one replica and, for a
    policy's belief, what had been seen there before."""

    model: str
    sites: tuple[SiteProfile, ...]
    mean_wait_s: float
    group: Callable[[SiteProfile, Shape], Hashable]
    queues: Callable[[str], list[Centre]]
    past: Callable[[str, str], dict[str, Estimator]]

    def work(self, duration: float) -> float:
        """Tokens that all sites live train in so many mean waits."""
        speed = sum(site.speed * full_shape(site).nodes for site in self.sites)
        return duration * self.mean_wait_s * speed


def setting(
    model: str,
    num_sites: int,
    *,
    walltime: float | None = None,
    folder: Path | None = None,
    conservative: bool = False,
) -> Setting:
    """The setting of a model. `walltime`: of the full shape in mean waits, for drawn waits
    (default: no limit). Raises TraceInvalid where a trace is needed and is not there."""
    if model == "bootstrapped":
        return _bootstrapped(num_sites, traces.folder(folder))
    if model == "endogenous":
        return _endogenous(num_sites, traces.folder(folder), conservative)
    draw = models.exponential(MEAN_S) if model == "exponential" else models.lognormal(MEAN_S, SIGMA)
    limit_s = NO_LIMIT_S if walltime is None else int(walltime * MEAN_S)
    sites = _sites(num_sites, (1, 2), sorted({limit_s, limit_s // 2, limit_s // 4}), 0.0)

    def queues(seed: str) -> list[Centre]:
        return [DrawnCentre(draw, f"{seed}/{site.name}", LATE_S) for site in sites]

    return Setting(
        model,
        sites,
        MEAN_S,
        lambda site, shape: None,
        queues,
        _drawn_past(sites, queues, _no_group),
    )


def _sites(
    num: int, nodes: Sequence[int], walltimes_s: Sequence[int], start_up_s: float
) -> tuple[SiteProfile, ...]:
    shapes = tuple(Shape(n, s) for n in nodes for s in walltimes_s)
    limits = Limits(max_pending=4, max_submissions_a_day=48, max_chain=10_000)
    return tuple(
        SiteProfile(f"site-{k + 1}", "batch", shapes, 1.0, limits, start_up_s=start_up_s)
        for k in range(num)
    )


def _no_group(site: SiteProfile, shape: Shape) -> Hashable:
    return None


def _limit_class(site: SiteProfile, shape: Shape) -> Hashable:
    return sum(shape.walltime_s > edge for edge in coverage.LIMIT_EDGES_S)


def _drawn_past(
    sites: Sequence[SiteProfile],
    queues: Callable[[str], list[Centre]],
    group: Callable[[SiteProfile, Shape], Hashable],
) -> Callable[[str, str], dict[str, Estimator]]:
    """Starts of jobs of all shapes, in turn, before the run began."""

    def past(seed: str, believes: str) -> dict[str, Estimator]:
        found = {}
        for site, centre in zip(sites, queues(seed), strict=True):
            estimator = found[site.name] = Estimator()
            if believes in ("raw", "oracle") or not isinstance(centre, DrawnCentre):
                continue
            for number in range(NUM_PAST):
                shape = site.shapes[number % len(site.shapes)]
                before_s = -(NUM_PAST - number) * HOUR_S * 2.0
                probe_s, wait_s = centre.past(before_s, shape, number)
                features = Features(
                    probe_s if believes == "calibrated" else None, group=group(site, shape)
                )
                estimator.observe(estimator.forecast(features), wait_s)
        return found

    return past


def _bootstrapped(num_sites: int, folder: Path) -> Setting:
    jobs = traces.drac(folder / traces.DRAC)
    late = [pair.late_s for pair in traces.pairs(folder / traces.PAIRS)]
    waits = models.Bootstrapped(jobs)
    sites = _sites(num_sites, (1, 2), [h * HOUR_S for h in (1, 3, 6, 12, 24)], 300.0)

    def queues(seed: str) -> list[Centre]:
        random = Random(f"offset/{seed}")
        span = waits.end_s - waits.start_s
        return [
            DrawnCentre(waits.draw(random.uniform(0, span)), f"{seed}/{site.name}", late)
            for site in sites
        ]

    past = _drawn_past(sites, queues, _limit_class)
    return Setting("bootstrapped", sites, _weighted_mean(jobs), _limit_class, queues, past)


def _weighted_mean(jobs: Sequence[Waited]) -> float:
    return sum(job.wait_s * job.weight for job in jobs) / sum(job.weight for job in jobs)


def _endogenous(num_sites: int, folder: Path, conservative: bool) -> Setting:
    from ops.placement.backfill import CONSERVATIVE

    jobs = traces.kth(folder / traces.KTH)
    sites = _sites(num_sites, (4, 8, 16), [h * HOUR_S for h in (1, 2, 4, 8, 12)], 300.0)
    seen = coverage.of_kth(jobs, every=8)
    large = [job.wait_s for job in jobs if job.nodes >= 8 and job.limit_s >= 4 * HOUR_S]
    first_s, last_s = jobs[0].submit_s + 30 * 86400, jobs[-1].submit_s - 60 * 86400
    depth = CONSERVATIVE if conservative else 1

    def begins(seed: str) -> list[float]:
        random = Random(f"offset/{seed}")
        return [random.uniform(first_s, last_s) for _ in sites]

    def queues(seed: str) -> list[Centre]:
        return [LivedCentre(_machine(jobs, at_s, depth)) for at_s in begins(seed)]

    def past(seed: str, believes: str) -> dict[str, Estimator]:
        found = {}
        for site, at_s in zip(sites, begins(seed), strict=True):
            estimator = found[site.name] = Estimator()
            known = [one for one in seen if one.at_s + one.wait_s < at_s]
            for one in known[-NUM_PAST:]:
                features = one.features if believes == "calibrated" else Features()
                estimator.observe(estimator.forecast(features), one.wait_s)
        return found

    mean_s = sum(large) / len(large)
    return Setting("endogenous", sites, mean_s, _no_group, queues, past)


def _machine(jobs: Sequence[TraceJob], at_s: float, depth: int) -> Machine:
    """The trace's machine, with the study's clock at 0 when the trace's is at `at_s`."""
    from dataclasses import replace

    near = [
        replace(job, submit_s=job.submit_s - at_s)
        for job in jobs
        if at_s - 10 * 86400 < job.submit_s < at_s + 120 * 86400
    ]
    return Machine(traces.KTH_NODES, near, 0.0, depth)
