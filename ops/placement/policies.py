"""The policies that the study compares: two that wait for all, two that just join, four that plan.

`wait-for-all` needs every site (held free: who waits for the others neither pays nor nears its
walltime). `elastic` joins greedily with the full shape and asks again when a job has ended;
`elastic-chain` asks for a successor as soon as a job works. The planning ones all run `plan.plan`;
they differ in what they believe: `history` the starts seen there and no probe, `raw` the probe as
it is said, `calibrated` what past errors make of it, `oracle` the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from ops.placement import backfill
from ops.placement.estimate import Estimator, Features, Forecast, given
from ops.placement.options import full_shape
from ops.placement.plan import Estimates, plan
from ops.placement.shapes import (
    Action,
    Basis,
    Do,
    JobPhase,
    JobState,
    Shape,
    SiteProfile,
    WaitEstimate,
)
from ops.placement.world import Together, World

LOOK_S = 3600.0  # a planner looks again that often; nothing forces it to ask
SURE = 1_000_000  # who takes a wait as it is said sees no error in it


@dataclass(slots=True)
class Greedy:
    """The full shape everywhere, again whenever there is none; `chain`: also while one works."""

    chain: bool = False
    together: Together = Together.ELASTIC
    look_s: float = inf

    def decide(self, world: World) -> Iterator[Action]:
        """At each site at most one job that waits."""
        for site in world.sites:
            jobs = [job for job in world.jobs.values() if job.site == site.name]
            running = [job for job in jobs if job.phase is JobPhase.RUNNING]
            if len(jobs) > len(running) or len(running) > 1:
                continue
            if running and not (self.chain and _ends_too_soon(world, running[0])):
                continue
            yield Action(Do.SUBMIT, site.name, "greedy", full_shape(site))

    def started(self, world: World, job: JobState) -> None:
        """It learns nothing."""


def _ends_too_soon(world: World, job: JobState) -> bool:
    """Whether a job ends before the run could; one that outlives it needs no successor."""
    speed = world.speed()
    return job.ends_at_s is not None and (
        speed <= 0 or job.ends_at_s < world.now_s + world.work / speed
    )


@dataclass(slots=True)
class _Known:
    """The estimates of one decision, while they are gathered."""

    new: dict[tuple[str, Shape], WaitEstimate] = field(default_factory=dict)
    pending: dict[str, WaitEstimate] = field(default_factory=dict)
    reshaped: dict[tuple[str, Shape], WaitEstimate] = field(default_factory=dict)


@dataclass(slots=True)
class Planning:
    """`plan.plan` on what `believes` makes of the queues. `estimators`: one a site, with whatever
    it has seen before the run."""

    believes: str
    estimators: dict[str, Estimator]
    group: Callable[[SiteProfile, Shape], Hashable]
    together: Together = Together.ELASTIC
    look_s: float = LOOK_S
    _asked: dict[str, Forecast] = field(default_factory=dict)  # by job: as it was submitted
    _new: dict[tuple[str, Shape], Forecast] = field(default_factory=dict)

    def decide(self, world: World) -> Iterable[Action]:
        """Ask, plan, and remember what was expected of each job that is submitted."""
        self._new.clear()
        known = _Known()
        for site in world.sites:
            if site.name in world.touched:
                self._ask(world, site, known)
        estimates = Estimates(known.new, known.pending, known.reshaped)
        made = plan(world.situation(), estimates)
        numbers = dict(world.lengths)
        for action in made.actions:
            if action.do is Do.SUBMIT and action.shape is not None:
                number = numbers.get(action.site, 0)
                numbers[action.site] = number + 1
                self._asked[f"{action.site}-{number}"] = self._new[action.site, action.shape]
        return made.actions

    def started(self, world: World, job: JobState) -> None:
        """The estimate that it was submitted on is judged, if it is one of those that learn."""
        if self.believes in ("history", "calibrated") and job.name in self._asked:
            forecast = self._asked[job.name]
            self.estimators[job.site].observe(forecast, world.now_s - job.submitted_at_s)

    def _ask(self, world: World, site: SiteProfile, known: _Known) -> None:
        """Whatever is to be known of a site, into `known`."""
        jobs = [job for job in world.jobs.values() if job.site == site.name]
        waiting = [job for job in jobs if job.phase is JobPhase.PENDING]
        snapshot = world.centre(site.name).snapshot(world.now_s)
        seen = None
        if snapshot is not None and self.believes in ("raw", "calibrated"):
            own = {job.name: _smaller(site, job) for job in waiting}
            seen = backfill.survey(snapshot, site.shapes, own)
        if len(waiting) < site.limits.max_pending:
            for number, shape in enumerate(site.shapes):
                said = None if seen is None else seen.new[number]
                self._new[site.name, shape] = self._forecast(world, site, shape, said)
                known.new[site.name, shape] = self._new[site.name, shape].estimate
        for job in waiting:
            said = None if seen is None else seen.own[job.name, job.shape]
            known.pending[job.name] = self._left(world, job, said)
        if seen is not None and self.believes == "calibrated":
            for (name, shape), said in seen.own.items():
                forecast = self.estimators[site.name].forecast(Features(simulated_s=said))
                known.reshaped[name, shape] = forecast.estimate

    def _forecast(
        self, world: World, site: SiteProfile, shape: Shape, simulated_s: float | None
    ) -> Forecast:
        """Of a new job. With a queue in sight, what is calibrated is our own simulation of it; the
        raw policy believes the probe."""
        centre, now_s = world.centre(site.name), world.now_s
        if self.believes == "oracle":
            return _taken(centre.truth(now_s, shape), "the truth")
        said_s = None
        if self.believes == "raw" or (self.believes == "calibrated" and simulated_s is None):
            world.tally.num_probes += 1
            said_s = centre.probe(now_s, shape)
        if self.believes == "raw":
            return _taken(inf if said_s is None else said_s, "as probed")
        features = Features(said_s, simulated_s, group=self.group(site, shape))
        return self.estimators[site.name].forecast(features)

    def _left(self, world: World, job: JobState, simulated_s: float | None) -> WaitEstimate:
        """Of a job that waits; where no queue is in sight, what is left of what was expected."""
        if self.believes == "oracle":
            return _taken(world.centre(job.site).left(world.now_s, job.name), "").estimate
        if simulated_s is not None:
            if self.believes == "raw":
                return _taken(simulated_s, "as squeue --start says").estimate
            return self.estimators[job.site].forecast(Features(simulated_s=simulated_s)).estimate
        return given(self._asked[job.name].estimate, world.now_s - job.submitted_at_s)


def _smaller(site: SiteProfile, job: JobState) -> list[Shape]:
    """The job's own shape and those that its user may change it to."""
    return [
        job.shape,
        *(
            shape
            for shape in site.shapes
            if shape != job.shape
            and shape.nodes <= job.shape.nodes
            and shape.walltime_s <= job.shape.walltime_s
        ),
    ]


def _taken(wait_s: float, text: str) -> Forecast:
    """A wait taken as it is said."""
    return Forecast(WaitEstimate((0.5,), (wait_s,), Basis.SAID, text, SURE), text, wait_s)
