"""The words of placement: what is asked for, what a queue looks like, what is expected, what to do.

All times are epoch seconds and all durations seconds, passed in by the caller; what is not known is
None, never 0. Everything here is frozen, so that a plan is a function of what it was shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isinf


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a job asks its queue for: whole nodes, for so many seconds."""

    nodes: int
    walltime_s: int

    @property
    def node_hours(self) -> float:
        """What it may use up of a budget."""
        return self.nodes * self.walltime_s / 3600

    def __str__(self) -> str:
        hours, minutes = divmod(self.walltime_s // 60, 60)
        return f"{self.nodes} nodes for {hours}:{minutes:02d} h"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a centre or the user allows there; None means that no limit is known. The agent's own
    caps (probes, polls) are not here."""

    max_pending: int = 4  # jobs of ours that may wait at a time
    max_submissions_a_day: int = 24
    max_chain: int = 50  # jobs that follow each other, at most, in a run
    budget_node_hours: float | None = None  # of the project, for this run
    min_walltime_s: int = 600  # a job shorter than this is not worth its start
    fast_failure_s: int = 120  # a job that ends by itself sooner has failed fast
    max_fast_failures: int = 3  # in a row: then the chain stops


@dataclass(frozen=True, slots=True)
class SiteProfile:
    """A site as placement sees it. `speed` is tokens a second of one node; `name` is the run's name
    of the site; several profiles of one `centre` are its job slots."""

    name: str
    partition: str
    shapes: tuple[Shape, ...]
    speed: float
    limits: Limits = Limits()
    centre: str | None = None  # where its queue is; None: a centre of its own
    start_up_s: float = 0.0  # from the job's start to its first step
    account: str | None = None

    @property
    def queue(self) -> str:
        """The queue it stands in: profiles with the same one compete with each other."""
        return f"{self.centre or self.name}/{self.partition}"


class JobPhase(StrEnum):
    """Where a job is. A finished one is in no queue and counts for nothing."""

    PENDING = "pending"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class JobState:
    """One job of ours. `ends_at_s` is when its time limit cuts it off, while it runs; of a pending
    one `expected_start_s` is what `squeue --start` said last."""

    name: str
    site: str
    shape: Shape
    phase: JobPhase
    submitted_at_s: float
    started_at_s: float | None = None
    ends_at_s: float | None = None
    expected_start_s: float | None = None
    chain: int = 0  # the chain at its site that it belongs to
    index: int = 0  # its place in that chain
    after: str | None = None  # the job that it succeeds, by name
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job of anybody's that holds nodes until its time limit at the latest."""

    nodes: int
    end_by_s: float  # epoch of the time limit, by which the scheduler plans
    job_id: str | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job of anybody's that waits. `held`: it will not start by itself (held, dependency)."""

    nodes: int
    limit_s: float
    eligible_s: float | None = None  # None: since before the snapshot
    job_id: str | None = None
    ours: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that are kept from ordinary jobs for a while, as for maintenance."""

    start_s: float
    end_s: float
    nodes: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One partition at one instant; `pending` stands in the order of priority, first first.
    `complete`: other users' jobs are visible; else a simulation of the queue says nothing."""

    now_s: float
    total_nodes: int
    free_nodes: int
    down_nodes: int
    running: tuple[RunningJob, ...]
    pending: tuple[PendingJob, ...]
    reservations: tuple[Reservation, ...] = ()
    up: bool = True  # the partition takes and starts jobs
    complete: bool = True


class Basis(StrEnum):
    """What an estimate rests on."""

    PRIOR = "prior"
    SAID = "as said"  # taken as the queue says it
    CALIBRATED = "calibrated"
    SIMULATED = "own simulation"


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """How long from now until a job would start: a distribution, given by quantiles at rising
    levels. inf: it may never. `q` interpolates between them, and holds the outermost beyond."""

    levels: tuple[float, ...]
    waits_s: tuple[float, ...]
    basis: Basis
    text: str = ""  # what it rests on, for a person
    num_observed: int = 0  # starts that were seen and that it rests on; 0: none

    def __post_init__(self) -> None:
        pairs = len(self.levels) == len(self.waits_s) and bool(self.levels)
        if not pairs or any(a > b for a, b in zip(self.waits_s, self.waits_s[1:], strict=False)):
            raise ValueError("an estimate has a wait for each level, and they do not fall")

    def q(self, p: float) -> float:
        """The wait that is not exceeded with probability p, in seconds, or inf."""
        return _interpolate(self.levels, self.waits_s, p)

    def p(self, wait_s: float) -> float:
        """How probable it is that the wait is not longer; the inverse of `q`, and beyond the
        outermost level 1, since somewhere a finite estimate has to end."""
        waits = self.waits_s
        above = bisect_right(waits, wait_s)
        if above == len(waits):
            return 1.0 if waits[-1] < inf else self.levels[-1]
        if above == 0:
            return 0.0
        low, high = waits[above - 1], waits[above]
        share = 0.0 if isinf(high) else (wait_s - low) / (high - low)
        return self.levels[above - 1] + share * (self.levels[above] - self.levels[above - 1])

    @property
    def median_s(self) -> float:
        """q(0.5)."""
        return self.q(0.5)


def _interpolate(levels: Sequence[float], waits: Sequence[float], p: float) -> float:
    above = bisect_left(levels, p)
    if above == 0:
        return waits[0]
    if above == len(levels):
        return waits[-1]
    low, a, b = levels[above - 1], waits[above - 1], waits[above]
    if b == inf:
        return inf
    return a + (b - a) * (p - low) / (levels[above] - low)


class Do(StrEnum):
    """What an action does."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    RESHAPE = "reshape"  # a pending job, which keeps its age
    HOLD = "hold"  # nothing, on purpose, for the reason given


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do at one site. `job`: the job that it is done to (cancel, reshape); for a
    submit the job is named by whoever submits. `after`: the job, by name, that the new one
    succeeds (it waits at the door until then); None starts a chain."""

    do: Do
    site: str
    reason: str
    shape: Shape | None = None
    job: str | None = None
    chain: int = 0
    index: int = 0
    after: str | None = None
    not_before_s: float | None = None  # the earliest start that makes sense (sbatch --begin)
