"""From a plan to what agents are told: jobs named, chains chosen, looks asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ops.placement.knowledge import Knowledge, Queue
from ops.placement.plan import Plan
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
from ops.placement.situation import DAY_S, Facts, Outlook

FRESH_S = 600.0  # a look or probe that is older is asked anew where a decision is open
MAX_CHAINS = 8  # side by side at one site
MAX_PROBES = 4  # of one plan at one site
LEVELS = (0.1, 0.5, 0.9)  # of an estimate, as people are told of it


def told(made: Plan, seen: Outlook, known: Knowledge, facts: Facts) -> list[dict[str, Any]]:
    """The plan as agents read it: jobs named, holds with the true reason, and what is to be looked
    at where a decision is open. A submission waits for the look that it is to rest on."""
    now, actions = seen.situation.now_s, []
    for action in _in_chains(made.actions, seen.situation.jobs):
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


def _in_chains(actions: Sequence[Action], jobs: Sequence[JobState]) -> Iterator[Action]:
    """Each new job in a chain of its own site where nobody waits yet: two that waited in one chain
    would stand at the same door, and only one of them could pass. It follows who runs there."""
    waiting = {(job.site, job.chain) for job in jobs if job.phase is JobPhase.PENDING}
    running = {(job.site, job.chain): job.name for job in jobs if job.phase is JobPhase.RUNNING}
    for action in actions:
        if action.do is Do.SUBMIT:
            chain = action.chain
            while (action.site, chain) in waiting:
                chain = (chain + 1) % MAX_CHAINS
                if chain == action.chain:
                    break
            waiting.add((action.site, chain))
            after = running.get((action.site, chain))
            action = replace(action, chain=chain, after=after)
        yield action


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
