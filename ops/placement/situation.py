"""From the log to what a plan is made of, and from a plan to what agents are told. Pure.

A site is left alone, with the reason, where its agent is not there or in trouble, its partition is
down, a job of ours waits for what will not come (a budget, a limit), or its jobs failed fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leases.jobs import Job
from ops.placement import backfill
from ops.placement.estimate import Features
from ops.placement.knowledge import Knowledge, Queue, shape_of
from ops.placement.options import grid
from ops.placement.plan import Estimates, Plan, Situation
from ops.placement.script import job_name
from ops.placement.shapes import (
    Action,
    Do,
    JobPhase,
    JobState,
    Shape,
    SiteProfile,
    WaitEstimate,
)
from ops.placement.sites import Site

DAY_S = 86_400
FRESH_S = 600.0  # a look or probe that is older is asked anew where a decision is open
PATIENCE_S = 300.0  # for a look that was asked for; then one decides without it
MAX_PROBES = 4  # of one plan at one site
_STUCK = ("Assoc", "QOS", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "BadConstraints",
          "PartitionTimeLimit", "PartitionNodeLimit", "JobHeldAdmin", "DependencyNeverSatisfied",
          "launch failed")  # fmt: skip
_FAILED = ("failed", "unknown", "completed")
LEVELS = (0.1, 0.5, 0.9)  # of an estimate, as people are told of it


@dataclass(frozen=True, slots=True)
class Facts:
    """What the run is about. state: as `View.run`; work_left: tokens, None where unknown;
    founded: id of the run's first event."""

    run: str
    founded: str
    state: str
    work_left: float | None
    live: frozenset[str] = frozenset()  # sites that train now


@dataclass(slots=True)
class Outlook:
    """The situation of all sites, with the reason for each that is left alone."""

    situation: Situation
    estimates: Estimates
    left_alone: dict[str, str] = field(default_factory=dict)


def outlook(
    sites: Sequence[Site], jobs: Sequence[Job], known: Knowledge, facts: Facts, now: float
) -> Outlook:
    """What the planner decides on."""
    profiles = tuple(site.profile() for site in sites)
    left_alone: dict[str, str] = {}
    for site, profile in zip(sites, profiles, strict=True):
        mine = [job for job in jobs if job.agent == site.name]
        queue = known.queue(site.name)
        why = _left_alone(queue, mine) or failed_fast(site, profile, mine, now)
        if why:
            left_alone[site.name] = why
    open_jobs = [job for job in jobs if job.state in ("intended", "submitted")]
    kept = {
        site.name: seen.reservations
        for site in sites
        if (seen := known.queue(site.name).seen) is not None
    }
    situation = Situation(
        now_s=now,
        work_left=facts.work_left,
        sites=profiles,
        jobs=tuple(job_state(job, now) for job in open_jobs),
        spent_node_hours={one.name: spent(jobs, one.name, now) for one in profiles},
        submitted_today={
            one.name: sum(
                job.agent == one.name and now - (job.intended_at or now) < DAY_S for job in jobs
            )
            for one in profiles
        },
        chain_lengths={one.name: _so_far(jobs, one.name) for one in profiles},
        reservations=kept,
        down=frozenset(left_alone),
    )
    return Outlook(situation, _estimates(profiles, open_jobs, known, situation), left_alone)


def _estimates(
    profiles: Sequence[SiteProfile],
    open_jobs: Sequence[Job],
    known: Knowledge,
    situation: Situation,
) -> Estimates:
    now, new = situation.now_s, {}
    for one in profiles:
        shapes = grid(one, situation.reservations.get(one.name, ()), now)
        for shape, estimate in known.estimates(one.name, shapes, now).items():
            new[one.name, shape] = estimate
    waiting = [job for job in open_jobs if job.phase != "running"]
    reshaped: dict[tuple[str, Shape], WaitEstimate] = {}
    for job in waiting:
        profile = next((one for one in profiles if one.name == job.agent), None)
        if profile is not None and job.phase == "pending":
            reshaped |= _reshaped(known.queue(job.agent), job, profile.shapes, now)
    return Estimates(new, known.waits(waiting, now), reshaped)


def _reshaped(
    queue: Queue, job: Job, shapes: Sequence[Shape], now: float
) -> dict[tuple[str, Shape], WaitEstimate]:
    """When a waiting job would start as another shape at the place where it stands, by the same
    voice that says when it starts as it is."""
    seen = queue.seen
    if seen is None or not seen.complete or job.start_said is None:
        return {}
    place = next((k for k, one in enumerate(seen.pending) if one.job_id == job.job_id), None)
    if place is None:
        return {}
    found = {}
    for shape in shapes:
        changed = replace(seen.pending[place], nodes=shape.nodes, limit_s=float(shape.walltime_s))
        pending = (*seen.pending[:place], changed, *seen.pending[place + 1 :])
        start_s = backfill.planned(replace(seen, pending=pending))[1][place]
        features = Features(start_s=max(0.0, start_s - now))
        found[job.name, shape] = queue.estimator.forecast(features).estimate
    return found


def job_state(job: Job, now: float) -> JobState:
    """A job as the planner sees it; what was intended counts as waiting."""
    runs = job.phase == "running"
    ends = job.end_by or ((job.started_at or now) + job.walltime_s)
    return JobState(
        name=job.name,
        site=job.agent,
        shape=shape_of(job),
        phase=JobPhase.RUNNING if runs else JobPhase.PENDING,
        submitted_at_s=float(job.intended_at or now),
        started_at_s=float(job.started_at) if job.started_at else None,
        ends_at_s=float(ends) if runs else None,
        expected_start_s=float(job.start_said) if job.start_said else None,
        chain=job.chain,
        index=job.index,
        after=job.after,
        job_id=job.job_id,
    )


def spent(jobs: Sequence[Job], site: str, now: float) -> float:
    """Node-hours that a site's jobs have used, those that run up to now."""
    seconds = 0.0
    for job in jobs:
        if job.agent == site and job.started_at is not None:
            end = job.ended_at if job.state == "ended" else now
            last = job.started_at + job.walltime_s
            seconds += job.nodes * max(0.0, min(end or last, last) - job.started_at)
    return seconds / 3600


def _so_far(jobs: Sequence[Job], site: str) -> int:
    """Numbers of jobs are used once: how many were ever intended at a site."""
    return sum(job.agent == site for job in jobs)


def _left_alone(queue: Queue, jobs: Sequence[Job]) -> str:
    """Why nothing is to be asked at a site now; '' where all is well."""
    if not queue.state:
        return "no agent has reported from there"
    if queue.state == "halted":
        return f"its agent is halted: {queue.message}"
    if queue.state == "troubled":
        return f"its agent is in trouble: {queue.message}"
    if queue.seen is not None and not queue.seen.up:
        return "its partition starts nothing now"
    for job in jobs:
        if job.state == "submitted" and job.why_waiting.startswith(_STUCK):
            return f"job {job.job_id} waits for what its turn does not bring: {job.why_waiting}"
    return ""


def failed_fast(site: Site, profile: SiteProfile, jobs: Sequence[Job], now: float) -> str:
    """Why a site's chain is stopped: its last jobs failed, or ended by themselves at once. What
    lies longer back than `forgive` counts no more, so that one more is tried after a mend."""
    limits, row = profile.limits, 0
    for job in reversed([job for job in jobs if job.state == "ended"]):
        at = job.ended_at or job.intended_at or 0
        if now - at > site.limits.forgive:
            break
        if job.outcome == "never_submitted" or (
            job.outcome in _FAILED and _lasted_s(job) < limits.fast_failure_s
        ):
            row += 1
            continue
        break
    if row < limits.max_fast_failures:
        return ""
    last = next(job for job in reversed(jobs) if job.state == "ended")
    return f"{row} jobs in a row failed fast, the last one: {last.outcome} {last.message}".strip()


def _lasted_s(job: Job) -> float:
    if job.started_at is None or job.ended_at is None:
        return 0.0
    return float(job.ended_at - job.started_at)


def told(made: Plan, seen: Outlook, known: Knowledge, facts: Facts) -> list[dict[str, Any]]:
    """The plan as agents read it: jobs named, holds with the true reason, and what is to be looked
    at where a decision is open. A submission waits for the look that it is to rest on."""
    now, actions = seen.situation.now_s, []
    for action in made.actions:
        if action.do is Do.HOLD:
            why = seen.left_alone.get(action.site, action.reason)
            actions.append({"do": "hold", "site": action.site, "reason": why})
        elif action.do is not Do.SUBMIT or _is_fresh(known.queue(action.site), now):
            actions.append(_told(action, seen, facts))
    for profile in seen.situation.sites:
        chosen = [one.shape for one in made.actions if one.site == profile.name and one.shape]
        submits = any(one.do is Do.SUBMIT for one in made.actions if one.site == profile.name)
        actions += _wanted(profile, known.queue(profile.name), chosen, submits, seen, now)
    return actions


def _told(action: Action, seen: Outlook, facts: Facts) -> dict[str, Any]:
    said: dict[str, Any] = {"do": str(action.do), "site": action.site, "reason": action.reason}
    if action.shape is not None:
        said["shape"] = [action.shape.nodes, action.shape.walltime_s]
    if action.do is not Do.SUBMIT:
        return said | {"job": action.job}
    said["job"] = job_name(facts.run, action.site, action.index + 1, facts.founded)
    said |= {"chain": action.chain, "index": action.index}
    if action.after:
        said["after"] = action.after
    if action.not_before_s is not None:
        said["not_before_s"] = int(action.not_before_s)
    wait = seen.estimates.new.get((action.site, action.shape)) if action.shape else None
    if wait is not None:
        said["expected_s"] = int(seen.situation.now_s + min(wait.median_s, 365.0 * DAY_S))
    return said


def _is_fresh(queue: Queue, now: float) -> bool:
    return queue.seen is not None and now - queue.seen.now_s <= FRESH_S


def _wanted(
    profile: SiteProfile,
    queue: Queue,
    chosen: Sequence[Shape],
    submits: bool,
    seen: Outlook,
    now: float,
) -> list[dict[str, Any]]:
    """What a site's agent is to look at: a partition that is down, until it is up; else the queue
    and the shapes that matter, where a job may be submitted and what is known is old."""
    site = profile.name
    if queue.state in ("", "halted"):
        return []
    down = queue.seen is not None and not queue.seen.up
    troubled = queue.state == "troubled"  # a good look ends it
    open_decision = site not in seen.left_alone and (submits or not _is_fresh(queue, now))
    wants: list[dict[str, Any]] = []
    if down or troubled or open_decision:
        why = seen.left_alone.get(site, "a decision is open")
        wants.append({"do": "observe", "site": site, "reason": why})
    if submits and not down:
        shapes = dict.fromkeys([*chosen, max(profile.shapes, key=lambda one: one.node_hours)])
        old = [one for one in [*shapes][:MAX_PROBES] if not _is_probed(queue, one, now)]
        if old:
            asked = [[one.nodes, one.walltime_s] for one in old]
            wants.append(
                {"do": "probe", "site": site, "shapes": asked, "reason": "a decision is open"}
            )
    return wants


def _is_probed(queue: Queue, shape: Shape, now: float) -> bool:
    probe = queue.probes.get(shape)
    return probe is not None and now - probe.asked_s <= FRESH_S


def in_words(estimates: Mapping[tuple[str, Shape], WaitEstimate]) -> list[dict[str, Any]]:
    """Estimates as the log keeps them: three quantiles each, seconds, None for never."""
    said = []
    for (site, shape), wait in estimates.items():
        waits = [wait.q(level) for level in LEVELS]
        said.append(
            {
                "site": site,
                "shape": [shape.nodes, shape.walltime_s],
                "waits_s": [None if one > 1e9 else round(one) for one in waits],
                "basis": str(wait.basis),
                "text": wait.text,
            }
        )
    return said
