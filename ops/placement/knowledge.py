"""What the log says of the sites' queues, and how wrong its estimates were: a fold in memory.

Each start that is told teaches the site's estimator. A job is judged by what was known when it was
intended, at its own position in the log: so a planner that starts anew knows what the last knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from eventlog.codec import Entry
from eventlog.events import (
    AGENT,
    AgentReported,
    Event,
    JobEnded,
    JobIntended,
    JobObserved,
    PlacementProbed,
    QueueObserved,
)
from leases.jobs import Job
from ops.placement import backfill
from ops.placement.estimate import Estimator, Features, Forecast, given
from ops.placement.shapes import QueueSnapshot, Shape, WaitEstimate
from ops.placement.snapshot import snapshot

OUTAGE_S = 3600.0  # a controller that was silent for longer has another queue afterwards
STALE_S = 1800.0  # what was seen of a queue longer ago says little


@dataclass(frozen=True, slots=True)
class Probed:
    """The last answer to a probe. start_s: epoch, None where unknown or refused."""

    asked_s: float
    outcome: str
    start_s: float | None
    message: str
    trouble: str


@dataclass(slots=True)
class Queue:
    """What is known of one site."""

    seen: QueueSnapshot | None = None
    probes: dict[Shape, Probed] = field(default_factory=dict)
    estimator: Estimator = field(default_factory=Estimator)
    state: str = ""  # its agent's, as it reported last; "": none has ever
    message: str = ""
    last_error: str = ""
    trouble: str = ""
    troubled_at: float | None = None  # since when, by the agent's clock
    waiting: dict[str, tuple[Forecast, float]] = field(default_factory=dict)  # by job: from when

    def features(
        self, shapes: Sequence[Shape], now: float, *, start_s: float | None = None
    ) -> list[Features]:
        """Who says what of a job of each shape, in seconds from now; nothing that is stale."""
        simulated = self._simulated(shapes, now)
        said_s = None if start_s is None else max(0.0, start_s - now)
        return [
            Features(self._probed(shape, now), wait_s, said_s)
            for shape, wait_s in zip(shapes, simulated, strict=True)
        ]

    def _probed(self, shape: Shape, now: float) -> float | None:
        probe = self.probes.get(shape)
        if probe is None or probe.start_s is None or now - probe.asked_s > STALE_S:
            return None
        return max(0.0, probe.start_s - now)

    def _simulated(self, shapes: Sequence[Shape], now: float) -> list[float | None]:
        """Our own backfill of the last look at the queue; None where there is none to speak of."""
        seen = self.seen
        if seen is None or not seen.complete or now - seen.now_s > STALE_S:
            return [None] * len(shapes)
        waits = backfill.starts(seen, shapes)
        return [max(0.0, one + seen.now_s - now) if one < inf else None for one in waits]

    def never(self, shape: Shape) -> str:
        """Why a job of this shape would not start at all, as things stand; '' where it may."""
        seen, probe = self.seen, self.probes.get(shape)
        if seen is not None and not seen.up:
            return "the partition is down"
        if seen is not None and shape.nodes > seen.total_nodes:
            return f"the partition has {seen.total_nodes} nodes"
        if seen is not None and shape.nodes > seen.total_nodes - seen.down_nodes:
            return f"{seen.down_nodes} of {seen.total_nodes} nodes are down or drained"
        if probe is not None and probe.outcome == "refused":
            return probe.message
        return ""


@dataclass(slots=True)
class Knowledge:
    """All sites, by name."""

    queues: dict[str, Queue] = field(default_factory=dict)

    def see(self, entry: Entry, void: str) -> None:
        """Fold one event of an agent; all others, and void ones, say nothing here."""
        kind, _, site = entry.record.subject.partition(".")
        if kind != AGENT or void or entry.event is None or entry.envelope is None:
            return
        self._fold(self.queue(site), entry.event, entry.envelope.at)

    def queue(self, site: str) -> Queue:
        """What is known of a site, of one that nobody spoke of too."""
        return self.queues.setdefault(site, Queue())

    def estimates(
        self, site: str, shapes: Sequence[Shape], now: float
    ) -> Mapping[Shape, WaitEstimate]:
        """The wait of a new job of each shape from now on; shapes that would never start are left
        out."""
        queue = self.queue(site)
        open_to = [shape for shape in shapes if not queue.never(shape)]
        return {
            shape: queue.estimator.forecast(features).estimate
            for shape, features in zip(open_to, queue.features(open_to, now), strict=True)
        }

    def waits(self, jobs: Iterable[Job], now: float) -> dict[str, WaitEstimate]:
        """What is left of the wait of each of our jobs that wait, by name."""
        found = {}
        for job in jobs:
            queue = self.queue(job.agent)
            said = job.start_said
            if said is not None:
                (features,) = queue.features([shape_of(job)], now, start_s=float(said))
                found[job.name] = queue.estimator.forecast(features).estimate
            elif job.name in queue.waiting:
                forecast, since = queue.waiting[job.name]
                found[job.name] = given(forecast.estimate, max(0.0, now - since))
        return found

    def _fold(self, queue: Queue, event: Event, at: float) -> None:
        if isinstance(event, QueueObserved):
            queue.seen = snapshot(event.model_dump())
        elif isinstance(event, PlacementProbed):
            shape = Shape(event.shape.nodes, event.shape.walltime_s)
            start = event.start_epoch_s
            asked = float(event.asked_epoch_s or at)
            said = None if start is None else float(start)
            trouble = event.trouble or ""
            queue.probes[shape] = Probed(asked, event.outcome, said, event.message, trouble)
            if trouble:
                queue.last_error = event.message
        elif isinstance(event, AgentReported):
            self._reported(queue, event, at)
        elif isinstance(event, JobIntended):
            since = float(event.not_before_epoch_s or event.at_epoch_s or at)
            shape = Shape(event.shape.nodes, event.shape.walltime_s)
            forecast = queue.estimator.forecast(queue.features([shape], since)[0])
            queue.waiting[event.job_name] = (forecast, since)
        elif isinstance(event, JobObserved):
            self._observed(queue, event, at)
        elif isinstance(event, JobEnded):
            queue.waiting.pop(event.job_name, None)
            if event.outcome in ("failed", "never_submitted"):
                queue.last_error = event.message or event.outcome

    def _reported(self, queue: Queue, event: AgentReported, at: float) -> None:
        if event.state == "troubled":
            queue.last_error = event.message
            queue.troubled_at = queue.troubled_at or at
        else:
            if queue.troubled_at is not None and at - queue.troubled_at > OUTAGE_S:
                queue.estimator.reset()
            queue.troubled_at = None
        queue.state, queue.message = event.state, event.message
        queue.trouble = event.trouble or ""

    def _observed(self, queue: Queue, event: JobObserved, at: float) -> None:
        if event.job_name not in queue.waiting:
            return
        forecast, since = queue.waiting[event.job_name]
        if event.phase == "running":
            del queue.waiting[event.job_name]
            queue.estimator.observe(forecast, max(0.0, (event.started_epoch_s or at) - since))
        else:
            queue.estimator.overdue(forecast, max(0.0, at - since))


def shape_of(job: Job) -> Shape:
    """What a job asks for, as it stands."""
    return Shape(job.nodes, job.walltime_s)
