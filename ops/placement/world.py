"""One run in the study's world: sites with queues, a policy that asks them, until the target.

Discrete events: a queue's own, the end of a job, a job that is warm, the policy's next look, the
target. Between events the run advances at the speed of the nodes that work: at each site at most
its full shape's, whatever else is granted waits at the door (R11) and counts as idle. Nothing is
drawn here; what waits are like is the centres' matter (`models`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Protocol

from ops.placement.models import Centre
from ops.placement.options import full_shape
from ops.placement.plan import Situation
from ops.placement.shapes import Action, Do, JobPhase, JobState, SiteProfile

DAY_S = 86400.0
EARLY_S = 1e-6


class Together(StrEnum):
    """Whether sites wait for each other, and what a job that waits for others does."""

    ELASTIC = "elastic"  # whoever is there works
    HELD_FREE = "held free"  # all or none; who waits neither pays nor nears its walltime
    BURNING = "burning"  # all or none; who waits pays, and its walltime runs


class Policy(Protocol):
    """Decides what to ask for. `look_s`: how often it looks besides when something happens to a job
    of ours (inf: never)."""

    together: Together
    look_s: float

    def decide(self, world: World) -> Iterable[Action]:
        """What to do now; `world.touched` are the sites where something has changed."""
        ...

    def started(self, world: World, job: JobState) -> None:
        """A job of ours has started: how long it waited is known."""
        ...


@dataclass(slots=True)
class Tally:
    """What a run took. Node-hours are what jobs were given, idle ones the part that did no work."""

    time_s: float = inf  # to the target; inf: not within the horizon
    node_s: float = 0.0
    idle_node_s: float = 0.0
    dark_s: float = 0.0  # no site worked
    num_probes: int = 0
    num_submissions: int = 0


@dataclass(slots=True)
class World:
    """The state of one run. `work` in tokens; times begin at 0."""

    sites: Sequence[SiteProfile]
    centres: Sequence[Centre]
    work: float
    horizon_s: float
    now_s: float = 0.0
    jobs: dict[str, JobState] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    spent: dict[str, float] = field(default_factory=dict)  # node-hours by site
    lengths: dict[str, int] = field(default_factory=dict)  # submissions by site
    submitted_at: dict[str, list[float]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    _full: dict[str, int] = field(default_factory=dict)
    _index: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._full = {site.name: full_shape(site).nodes for site in self.sites}
        self._index = {site.name: k for k, site in enumerate(self.sites)}
        self.touched = set(self._full)

    def run(self, policy: Policy) -> Tally:
        """Until the target or the horizon; what it took."""
        self._apply(policy, policy.decide(self))
        look_s, ours_s, changed = policy.look_s, inf, True
        speed, working = self._speed(policy.together)
        while self.work > 0 and self.now_s < self.horizon_s:
            if changed or self.now_s >= ours_s:
                speed, working = self._speed(policy.together)
                ours_s = self._next_of_ours()
            centre = min(self.centres, key=lambda one: one.next_s)
            done_s = self.now_s + self.work / speed if speed > 0 else inf
            next_s = min(done_s, ours_s, centre.next_s, look_s, self.horizon_s)
            self._pass(next_s, speed, working)
            if next_s >= done_s:
                self.work = 0.0
                break
            changed = self._end_jobs(policy)
            if centre.next_s <= next_s:
                changed |= self._start(policy, centre.step())
            if self.now_s >= look_s:
                changed, look_s = True, self.now_s + policy.look_s
                self.touched |= self._full.keys()
            if changed:
                self._apply(policy, policy.decide(self))
        self.tally.time_s = self.now_s if self.work <= 0 else inf
        return self.tally

    def centre(self, site: str) -> Centre:
        """Where a site's queue is."""
        return self.centres[self._index[site]]

    def situation(self) -> Situation:
        """What the planner is shown."""
        today = {
            name: len(times) - bisect_right(times, self.now_s - DAY_S)
            for name, times in self.submitted_at.items()
        }
        return Situation(
            self.now_s,
            self.work,
            tuple(self.sites),
            tuple(self.jobs.values()),
            spent_node_hours=dict(self.spent),
            submitted_today=today,
            chain_lengths=dict(self.lengths),
            at=frozenset(self.touched),
        )

    def nodes_at(self, site: SiteProfile) -> tuple[int, int]:
        """(granted, warm) nodes of ours."""
        granted = warm = 0
        for job in self.jobs.values():
            if job.site == site.name and job.started_at_s is not None:
                granted += job.shape.nodes
                if job.started_at_s + site.start_up_s <= self.now_s + EARLY_S:
                    warm += job.shape.nodes
        return granted, warm

    def speed(self) -> float:
        """Tokens a second, elastically, as things are."""
        return self._speed(Together.ELASTIC)[0]

    def _speed(self, together: Together) -> tuple[float, dict[str, tuple[int, int]]]:
        """Tokens a second, and (granted, working) nodes by site."""
        found: dict[str, tuple[int, int]] = {}
        for site in self.sites:
            granted, warm = self.nodes_at(site)
            found[site.name] = (granted, min(warm, self._full[site.name]))
        waits = together is not Together.ELASTIC
        if waits and any(found[name][1] < full for name, full in self._full.items()):
            free = together is Together.HELD_FREE
            found = {name: (0 if free else granted, 0) for name, (granted, _) in found.items()}
        return sum(site.speed * found[site.name][1] for site in self.sites), found

    def _next_of_ours(self) -> float:
        """When a job ends or gets warm."""
        next_s = inf
        for job in self.jobs.values():
            if job.started_at_s is None:
                continue
            if job.ends_at_s is not None:
                next_s = min(next_s, job.ends_at_s)
            warm_s = job.started_at_s + self.sites[self._index[job.site]].start_up_s
            if warm_s > self.now_s + EARLY_S:
                next_s = min(next_s, warm_s)
        return next_s

    def _pass(self, to_s: float, speed: float, working: dict[str, tuple[int, int]]) -> None:
        passed_s = to_s - self.now_s
        self.work = max(0.0, self.work - speed * passed_s)
        for name, (granted, used) in working.items():
            self.tally.node_s += granted * passed_s
            self.tally.idle_node_s += (granted - used) * passed_s
            self.spent[name] = self.spent.get(name, 0.0) + granted * passed_s / 3600
        if speed <= 0:
            self.tally.dark_s += passed_s
        self.now_s = to_s

    def _end_jobs(self, policy: Policy) -> bool:
        """Jobs that reach their walltime end; those that were held begin theirs when all are
        there."""
        if policy.together is Together.HELD_FREE and self._all_there():
            for job in self.jobs.values():
                if job.started_at_s is not None and job.ends_at_s is None:
                    ends_s = self.now_s + job.shape.walltime_s
                    self.jobs[job.name] = replace(job, ends_at_s=ends_s)
                    self.centre(job.site).extend(job.name, ends_s)
        over = [
            job
            for job in self.jobs.values()
            if job.ends_at_s is not None and job.ends_at_s <= self.now_s + EARLY_S
        ]
        for job in over:
            del self.jobs[job.name]
            self.touched.add(job.site)
            self._start(policy, self.centre(job.site).withdraw(self.now_s, job.name))
        return bool(over)

    def _all_there(self) -> bool:
        return all(self.nodes_at(site)[1] >= self._full[site.name] for site in self.sites)

    def _start(self, policy: Policy, keys: Iterable[object]) -> bool:
        begun = False
        for key in keys:
            job = self.jobs[str(key)]
            self.touched.add(job.site)
            held = policy.together is Together.HELD_FREE
            ends_s = None if held else self.now_s + job.shape.walltime_s
            job = replace(job, phase=JobPhase.RUNNING, started_at_s=self.now_s, ends_at_s=ends_s)
            self.jobs[job.name] = job
            if held:
                self.centre(job.site).extend(job.name, inf)
            policy.started(self, job)
            begun = True
        if begun and policy.together is Together.HELD_FREE:
            self._end_jobs(policy)
        return begun

    def _apply(self, policy: Policy, actions: Iterable[Action]) -> None:
        actions = list(actions)
        self.touched.clear()
        for action in actions:
            centre = self.centre(action.site)
            if action.do is Do.SUBMIT and action.shape is not None:
                number = self.lengths.get(action.site, 0)
                self.lengths[action.site] = number + 1
                name = f"{action.site}-{number}"
                self.jobs[name] = JobState(
                    name,
                    action.site,
                    action.shape,
                    JobPhase.PENDING,
                    self.now_s,
                    chain=action.chain,
                    index=action.index,
                    after=action.after,
                )
                self.submitted_at.setdefault(action.site, []).append(self.now_s)
                self.tally.num_submissions += 1
                self._start(policy, centre.submit(self.now_s, name, action.shape))
            elif action.do is Do.RESHAPE and action.shape is not None and action.job in self.jobs:
                job = self.jobs[action.job]
                self.jobs[action.job] = replace(job, shape=action.shape)
                self._start(policy, centre.reshape(self.now_s, action.job, action.shape))
            elif action.do is Do.CANCEL and action.job in self.jobs:
                del self.jobs[action.job]
                self._start(policy, centre.withdraw(self.now_s, action.job))
