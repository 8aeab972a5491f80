"""From the log to what a plan is made of. Pure.

A site is left alone, with the reason, where its agent is not there or in trouble, its partition is
down, a job of ours waits for what will not come (a budget, a limit), or its jobs failed fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from leases.jobs import Job
from ops.placement import backfill
from ops.placement.estimate import Features
from ops.placement.knowledge import Knowledge, Queue, shape_of
from ops.placement.options import grid
from ops.placement.plan import Estimates, Situation
from ops.placement.shapes import (
    JobPhase,
    JobState,
    Shape,
    SiteProfile,
    WaitEstimate,
)
from ops.placement.sites import Site

DAY_S = 86_400
# Reasons for which a waiting job does not start when its turn comes: a budget that is used up, a
# limit of each single job, a hold. (…RunMinutes, and limits of jobs at a time, pass by themselves.)
_STUCK = re.compile(
    r"(?<!Run)Minutes|UsageThreshold|Max\w*PerJob|MaxWall|InvalidAccount|InvalidQOS|"
    r"AccountNotAllowed|QOSNotAllowed|BadConstraints|PartitionTimeLimit|PartitionNodeLimit|"
    r"JobHeld|NeverSatisfied|launch failed"
)
_FAILED = ("failed", "unknown", "completed")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the run is about. state: as `View.run`; work_left: tokens, None where unknown;
    founded: id of the run's first event."""

    run: str
    founded: str
    state: str
    work_left: float | None


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
    seen, job_id = queue.seen, job.job_id
    if seen is None or not seen.complete or job.start_said is None or job_id is None:
        return {}
    found = {}
    for (_, shape), wait_s in backfill.survey(seen, (), {job_id: shapes}).own.items():
        features = Features(start_s=max(0.0, wait_s + seen.now_s - now))
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
        if job.state == "submitted" and _STUCK.search(job.why_waiting):
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
