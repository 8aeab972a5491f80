"""What an agent makes of an answer, and what it does next. Pure: log, answers and time come in.

A job is looked for by its name and believed by name and id together, for ids are used again. What
a queue does not show is missing, not gone: somebody has to say that it ended, or that nobody knows
its id. An intent without an answer counts as never submitted only after the queue was looked at
twice, long enough after the last moment in which sbatch could still have been at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eventlog.events import Event, JobEnded, JobObserved, JobSubmitted, PlacementPlanned
from leases.jobs import Job, Look
from ops.placement.shapes import Shape
from ops.placement.slurm.ends import Told
from ops.placement.slurm.queues import Phase, Queued

_LIVES = (Phase.PENDING, Phase.RUNNING)
_MOVED_S = 300  # an expected start that moves by less is no news
_SLACK_S = 90  # Slurm ends a job up to a minute after its limit
OPEN = ("intended", "submitted")


@dataclass(frozen=True, slots=True)
class Stray:
    """A job in the queue that must not be there, though it is ours: to be cancelled."""

    job_id: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Tale:
    """What one look at the queue tells: events, jobs that it does not show, and strays."""

    events: tuple[Event, ...] = ()
    missing: tuple[Job, ...] = ()
    strays: tuple[Stray, ...] = ()


def tell(jobs: Sequence[Job], queued: Sequence[Queued]) -> Tale:
    """Hold the log's jobs against a queue that was really seen."""
    names = {job.name for job in jobs}
    shown: dict[str, list[Queued]] = {}
    for one in queued:
        if one.name in names and one.phase is not Phase.GONE:
            shown.setdefault(one.name, []).append(one)
    events: list[Event] = []
    missing: list[Job] = []
    strays: list[Stray] = []
    for job in jobs:
        found = sorted(shown.get(job.name, ()), key=_eldest)
        if job.state == "ended":
            why = f"the log says that it ended ({job.outcome})"
            strays += [Stray(one.job_id, job.name, why) for one in found if one.phase in _LIVES]
            continue
        ours = found[0].job_id if job.state == "intended" and found else job.job_id
        twice = f"job {job.name} is in the queue twice; {ours} stays"
        strays += [Stray(one.job_id, job.name, twice) for one in found if one.job_id != ours]
        mine = [one for one in found if one.job_id == ours]
        if not mine:
            missing.append(job)
            continue
        if job.state == "intended":
            events.append(JobSubmitted(job_name=job.name, job_id=mine[0].job_id))
        events += _seen(job, mine[0])
    return Tale(tuple(events), tuple(missing), tuple(strays))


def _eldest(one: Queued) -> tuple[bool, int]:
    """Who runs comes first, then who was there first: the one that is kept of several."""
    digits = "".join(char for char in one.job_id if char.isdigit())
    return (one.phase is not Phase.RUNNING, int(digits or 0))


def _seen(job: Job, one: Queued) -> list[Event]:
    """An event where the queue shows something else than the log says last."""
    if one.phase not in _LIVES or not one.nodes:
        return []
    runs = one.phase is Phase.RUNNING
    now = JobObserved(
        job_name=job.name,
        job_id=one.job_id,
        phase="running" if runs else "pending",
        nodes=one.nodes,
        walltime_s=one.limit_s or job.walltime_s,
        why_waiting="" if runs else one.reason[:1000],
        expected_start_epoch_s=None if runs else one.start_s,
        started_epoch_s=one.start_s if runs else None,
        end_by_epoch_s=one.end_s if runs else None,
    )
    known = (job.phase, job.nodes, job.walltime_s, job.why_waiting, job.started_at, job.end_by)
    said = (now.phase, now.nodes, now.walltime_s, now.why_waiting, now.started_epoch_s)
    same = known == (*said, now.end_by_epoch_s) and not _moved(
        job.start_said, now.expected_start_epoch_s
    )
    return [] if same else [now]


def _moved(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before != after
    return abs(before - after) >= _MOVED_S


def ending(job: Job, told: Sequence[Told], now: int) -> JobEnded | None:
    """How a submitted job that its queue does not show any more ended; None while somebody says
    that it is still there. `told`: what is known of its id, of other jobs with that id too."""
    mine = [one for one in told if one.name == job.name]
    if mine:
        last = mine[-1]
        if last.phase is not Phase.GONE:
            return None
        return JobEnded(
            job_name=job.name,
            job_id=job.job_id,
            outcome=last.outcome,
            message=last.reason if last.outcome == "failed" else "",
            started_epoch_s=last.start_s if (last.start_s or 0) <= (last.end_s or now) else None,
            ended_epoch_s=last.end_s,
        )
    walltime = job.end_by is not None and now >= job.end_by - _SLACK_S
    what = "another job has its id now" if told else "nobody knows its id any more"
    return JobEnded(
        job_name=job.name,
        job_id=job.job_id,
        outcome="walltime" if walltime else "unknown",
        message=what,
        ended_epoch_s=min(now, job.end_by) if job.end_by else None,
    )


@dataclass(slots=True)
class Doubt:
    """An intent whose answer never came. since: epoch of the last moment in which its sbatch may
    have been at work, or the controller was silent; looks: good ones since then, without it."""

    since: float
    looks: int = 0

    def looked(self) -> None:
        """One more good look at the queue that does not show it."""
        self.looks += 1

    def is_settled(self, now: float, settle_s: float) -> bool:
        """Whether it may be said that the job was never submitted."""
        return self.looks >= 2 and now - self.since >= settle_s


@dataclass(frozen=True, slots=True)
class Wish:
    """One action of the plan in force that concerns this site."""

    do: str
    plan: tuple[int, str]
    place: int  # in the plan
    reason: str = ""
    job: str = ""
    shape: Shape | None = None
    shapes: tuple[Shape, ...] = ()
    chain: int = 0
    index: int = 0
    after: str | None = None
    not_before_s: int | None = None
    expected_s: int | None = None

    @property
    def key(self) -> tuple[tuple[int, str], int]:
        """What tells it from every other wish of every other plan."""
        return self.plan, self.place


def wishes(plan: Look | None, site: str, now: float, longest_s: float) -> list[Wish]:
    """What the plan wants of a site; nothing where it is so old that its planner must be gone."""
    if plan is None or now - plan.at > longest_s:
        return []
    event = PlacementPlanned.model_validate(plan.said)
    found = []
    for place, action in enumerate(event.actions):
        if action.get("site") == site:
            found.append(_wish(action, plan.token, place))
    return found


def _wish(action: Mapping[str, Any], plan: tuple[int, str], place: int) -> Wish:
    shape, shapes = action.get("shape"), action.get("shapes") or ()
    return Wish(
        do=str(action.get("do", "")),
        plan=plan,
        place=place,
        reason=str(action.get("reason", "")),
        job=str(action.get("job") or ""),
        shape=Shape(*shape) if shape else None,
        shapes=tuple(Shape(*one) for one in shapes),
        chain=int(action.get("chain") or 0),
        index=int(action.get("index") or 0),
        after=action.get("after"),
        not_before_s=action.get("not_before_s"),
        expected_s=action.get("expected_s"),
    )


@dataclass(slots=True)
class Desk:
    """What the agent's process remembers; a restart forgets it, and nothing is lost by that."""

    doubts: dict[str, Doubt] = field(default_factory=dict)
    done: set[tuple[tuple[int, str], int]] = field(default_factory=set)  # wishes
    looked_at: float = 0.0  # epoch of the last good look

    def doubt(self, jobs: Sequence[Job], now: float) -> None:
        """Intents that nobody answers for: since now, where this process has no memory of them."""
        open_names = {job.name for job in jobs if job.state == "intended"}
        self.doubts = {name: self.doubts.get(name) or Doubt(now) for name in sorted(open_names)}

    def silence(self, now: float) -> None:
        """The controller did not answer: whatever was in flight may be carried out yet."""
        for one in self.doubts.values():
            one.since, one.looks = now, 0


def num_waiting(jobs: Sequence[Job]) -> int:
    """Jobs of ours that wait in the queue, or may do so for all that is known."""
    return sum(job.state in OPEN and job.phase != "running" for job in jobs)
