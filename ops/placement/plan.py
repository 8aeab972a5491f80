"""What to ask which queue for: a pure function (situation, estimates) -> (actions, reason).

At each site the planner fills the time up to the horizon. It weighs every shape, alone or as a
request split into equal, independent halves, by the work that it is expected to add (`value`),
takes the best, and goes on while a further job would still do work for at least half of what it is
given: so a successor is queued when its wait is about to reach the end of what runs, not sooner. It
leaves the full shape, the default, only where the gain exceeds the error of both estimates; a split
into halves costs nothing, breaks ties, and spreads the risk of one long wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

from ops.placement.options import best, chances, full_shape, grid, room_at
from ops.placement.shapes import (
    Action,
    Do,
    JobPhase,
    JobState,
    Reservation,
    Shape,
    SiteProfile,
    WaitEstimate,
)
from ops.placement.value import Chance, Cover, Worth

MIN_HORIZON_S = 1800.0
NUM_AHEAD = 2  # of the longest jobs, how many a plan looks ahead
KEEP_USE = 0.25  # a job that waits and is expected to work less than that of its time is cancelled


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan depends on besides estimates. `work_left`: tokens to the run's target; None:
    it has none that is known. `down`: sites whose partition starts nothing now; `stopped`: sites
    where a chain failed too often too fast."""

    now_s: float
    work_left: float | None
    sites: tuple[SiteProfile, ...]
    jobs: tuple[JobState, ...] = ()
    spent_node_hours: Mapping[str, float] = field(default_factory=dict)
    submitted_today: Mapping[str, int] = field(default_factory=dict)
    chain_lengths: Mapping[str, int] = field(default_factory=dict)  # jobs so far, by site
    reservations: Mapping[str, tuple[Reservation, ...]] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    at: frozenset[str] | None = None  # where something has changed; None: plan every site


@dataclass(frozen=True, slots=True)
class Estimates:
    """`new`: of a job submitted now, by site and shape; `pending`: of a job of ours that waits, by
    name; `reshaped`: of such a job if it were changed to that shape now."""

    new: Mapping[tuple[str, Shape], WaitEstimate]
    pending: Mapping[str, WaitEstimate] = field(default_factory=dict)
    reshaped: Mapping[tuple[str, Shape], WaitEstimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order in which to do them, and why; never empty without a reason."""

    actions: tuple[Action, ...]
    reason: str


def plan(situation: Situation, estimates: Estimates) -> Plan:
    """What to do now, an action for each site at least (`Do.HOLD`: nothing, and why). The run's
    target reached: cancel all that waits or runs, and ask for nothing."""
    if situation.work_left is not None and situation.work_left <= 0:
        reason = "the run has reached its target"
        ends = [Action(Do.CANCEL, job.site, reason, job=job.name) for job in situation.jobs]
        return Plan(tuple(ends), reason)
    horizon_s = _horizon(situation, estimates)
    actions: list[Action] = []
    for site in situation.sites:
        if situation.at is not None and site.name not in situation.at:
            continue
        actions += _at_site(site, situation, estimates, horizon_s)
    reasons = dict.fromkeys(f"{one.site}: {one.reason}" for one in actions)
    return Plan(tuple(actions), "; ".join(reasons) or "there are no sites")


def _horizon(situation: Situation, estimates: Estimates) -> float:
    """Until when work counts: the time that is left with every site live, two of the longest jobs
    at most (what comes later is planned later), and a typical wait."""
    fulls = [(site, full_shape(site)) for site in situation.sites]
    if not fulls:
        return MIN_HORIZON_S
    waits = sorted(
        estimates.new[key].median_s
        for site, full in fulls
        if (key := (site.name, full)) in estimates.new
    )
    wait_s = waits[len(waits) // 2] if waits else 0.0
    longest = float(max(full.walltime_s for _, full in fulls))
    left_s = NUM_AHEAD * longest
    if situation.work_left is not None:
        speed = sum(site.speed * full.nodes for site, full in fulls)
        left_s = min(left_s, situation.work_left / speed)
    return max(MIN_HORIZON_S, left_s + (wait_s if wait_s < inf else longest))


def _at_site(
    site: SiteProfile, situation: Situation, estimates: Estimates, horizon_s: float
) -> list[Action]:
    name, now_s = site.name, situation.now_s
    if name in situation.stopped:
        return [Action(Do.HOLD, name, "its chain is stopped: jobs failed fast, one after another")]
    if name in situation.down:
        return [Action(Do.HOLD, name, "its partition starts nothing now")]
    jobs = [job for job in situation.jobs if job.site == name]
    actions = _changes(site, jobs, now_s, estimates, horizon_s)
    gone = {action.job for action in actions if action.do is Do.CANCEL}
    changed = {action.job: action.shape for action in actions}
    jobs = [
        replace(job, shape=changed.get(job.name) or job.shape)
        for job in jobs
        if job.name not in gone
    ]
    cover = _cover(site, jobs, now_s, estimates, horizon_s)
    return actions + _submits(site, jobs, situation, estimates, cover, bool(actions))


def _submits(
    site: SiteProfile,
    jobs: Sequence[JobState],
    situation: Situation,
    estimates: Estimates,
    cover: Cover,
    acted: bool,
) -> list[Action]:
    """New jobs, while one more is worth it; each succeeds the job that runs longest, if any."""
    name = site.name
    running = [job for job in jobs if job.phase is JobPhase.RUNNING]
    last = max(running, key=lambda job: job.ends_at_s or inf, default=None)
    room = room_at(
        site,
        jobs,
        situation.now_s,
        spent_node_hours=situation.spent_node_hours.get(name, 0.0),
        submitted_today=situation.submitted_today.get(name, 0),
        so_far=situation.chain_lengths.get(name, len(jobs)),
    )
    shapes = grid(site, situation.reservations.get(name, ()), situation.now_s)
    actions: list[Action] = []
    known = chances(site, shapes, estimates.new, cover)
    while True:
        option, reason = best(site, known, cover, room)
        if option is None:
            break
        for chain in range(option.copies):
            cover.add(option.chance)
            actions.append(
                Action(
                    Do.SUBMIT,
                    name,
                    reason,
                    option.shape,
                    chain=chain if last is None else last.chain,
                    index=room.index,
                    after=None if last is None else last.name,
                )
            )
            room = room.less(option.shape)
    return actions if actions or acted else [Action(Do.HOLD, name, reason)]


def _cover(
    site: SiteProfile,
    jobs: Sequence[JobState],
    now_s: float,
    estimates: Estimates,
    horizon_s: float,
) -> Cover:
    """What is expected of jobs that run and wait."""
    cover = Cover(full_shape(site).nodes, horizon_s)
    for job in jobs:
        if job.phase is JobPhase.RUNNING:
            left_s = job.shape.walltime_s if job.ends_at_s is None else job.ends_at_s - now_s
            cover.add_running(job.shape.nodes, left_s)
            continue
        wait = estimates.reshaped.get((job.name, job.shape), estimates.pending.get(job.name))
        if wait is not None:
            cover.add(Chance(cover.points, job.shape, wait))
    return cover


def _changes(
    site: SiteProfile,
    jobs: Sequence[JobState],
    now_s: float,
    estimates: Estimates,
    horizon_s: float,
) -> list[Action]:
    """What to do to jobs that wait: cancel one that would stand at the door for most of its time,
    reshape one that a smaller shape would serve better than its own, by more than the error. An
    ordinary user may only ask for less than was asked; the job keeps its age. One job at a time:
    what is right for the next one depends on it."""
    for job in jobs:
        wait = estimates.pending.get(job.name)
        if job.phase is not JobPhase.PENDING or wait is None:
            continue
        cover = _cover(site, [one for one in jobs if one is not job], now_s, estimates, horizon_s)
        stays = cover.worth(Chance(cover.points, job.shape, wait, start_up_s=site.start_up_s))
        action = _reshape(site, job, stays, cover, estimates)
        if action is None and stays.granted > 0 and stays.use < KEEP_USE:
            why = f"it would work {stays.use:.0%} of its time: others run then"
            action = Action(Do.CANCEL, site.name, why, job=job.name)
        if action is not None:
            return [action]
    return []


def _reshape(
    site: SiteProfile, job: JobState, stays: Worth, cover: Cover, estimates: Estimates
) -> Action | None:
    found = []
    for shape in site.shapes:
        wait = estimates.reshaped.get((job.name, shape))
        smaller = shape.nodes <= job.shape.nodes and shape.walltime_s <= job.shape.walltime_s
        if wait is not None and smaller and shape != job.shape:
            chance = Chance(cover.points, shape, wait, start_up_s=site.start_up_s)
            found.append((cover.worth(chance), shape))
    if not found:
        return None
    worth, shape = max(found, key=lambda one: one[0].own)
    gain, error = worth.own - stays.own, sqrt(worth.error**2 + stays.error**2)
    if gain <= error:
        return None
    told = f"{gain / 3600:.0f} node-hours more than as {job.shape}, error {error / 3600:.0f}"
    return Action(Do.RESHAPE, site.name, told, shape, job=job.name)
