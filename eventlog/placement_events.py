"""Events of placement: what queues say, what becomes of jobs, and what is planned."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from eventlog.event import AGENT, PLANNER, Count, Event, Free, Name, Part, Positive, Reason

# -- placement ------------------------------------------------------------------------------------

Epoch = Positive  # whole seconds since 1970 UTC, by the clock of the machine that asked
Said = Annotated[str, Field(max_length=4000)]  # what a scheduler said, cut to fit
Trouble = Literal["permanent", "transient", "ours"]  # asking again: useless, worth it, after a fix
MAX_QUEUED = 20_000  # jobs of one look at a queue


class JobShape(Part):
    """What a job asks its queue for."""

    nodes: Positive
    walltime_s: Positive
    partition: str | None = None
    account: str | None = None


class PlacementProbed(Event):
    """What `sbatch --test-only` said; an unknown start stays unknown, never 0."""

    type: ClassVar[str] = "placement.probed"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    shape: JobShape
    outcome: Literal["estimated", "refused", "unknown"]
    start_epoch_s: Positive | None = None
    message: Said = ""
    asked_epoch_s: Epoch | None = None
    trouble: Trouble | None = None


class QueuedJob(Part):
    """A job of anybody's, without its name: who waits for what is nobody's business."""

    nodes: Positive
    limit_s: Count | None = None  # None: not known, or none
    at_epoch_s: Epoch | None = None  # running: its time limit cuts it off; pending: eligible since
    ours: bool = False
    held: bool = False  # it will not start by itself
    job_id: Annotated[str, Field(max_length=64)] | None = None  # of ours only


class KeptNodes(Part):
    """Nodes that a reservation keeps from ordinary jobs for a while."""

    start_epoch_s: Epoch
    end_epoch_s: Epoch
    nodes: Positive
    name: str = ""


class QueueObserved(Event):
    """One partition at one instant; `pending` in the order of priority.

    complete: other users' jobs are visible, and all of them are here.
    """

    type: ClassVar[str] = "queue.observed"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    partition: str
    at_epoch_s: Epoch
    total_nodes: Count
    free_nodes: Count
    down_nodes: Count
    up: bool
    complete: bool
    running: Annotated[tuple[QueuedJob, ...], Field(max_length=MAX_QUEUED)] = ()
    pending: Annotated[tuple[QueuedJob, ...], Field(max_length=MAX_QUEUED)] = ()
    reservations: tuple[KeptNodes, ...] = ()


class AgentReported(Event):
    """What an agent is about; written when that changes. A trouble says whose it is."""

    type: ClassVar[str] = "agent.reported"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    state: Literal["working", "halted", "troubled"]
    message: Said = ""
    trouble: Trouble | None = None


class JobIntended(Event):
    """Written before sbatch, so that a crash between the two is found by the job's name."""

    type: ClassVar[str] = "job.intended"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    job_name: Name
    shape: JobShape
    reason: Reason
    at_epoch_s: Epoch | None = None
    after: Name | None = None  # the job that it follows
    chain: Count = 0  # which chain at this site, and the place in it
    index: Count = 0
    not_before_epoch_s: Epoch | None = None
    expected_start_epoch_s: Epoch | None = None  # the median of the plan's estimate


class JobSubmitted(Event):
    type: ClassVar[str] = "job.submitted"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    job_name: Name
    job_id: Annotated[str, Field(min_length=1, max_length=64)]


class JobObserved(Event):
    """Where a job stands in its queue; written when that changes."""

    type: ClassVar[str] = "job.observed"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    job_name: Name
    job_id: Annotated[str, Field(min_length=1, max_length=64)]
    phase: Literal["pending", "running"]
    nodes: Positive
    walltime_s: Positive | None = None  # as it stands now, granted where it runs
    why_waiting: Said = ""  # the scheduler's reason
    expected_start_epoch_s: Epoch | None = None  # `squeue --start`: the backfill plan
    started_epoch_s: Epoch | None = None
    end_by_epoch_s: Epoch | None = None


class JobEnded(Event):
    type: ClassVar[str] = "job.ended"
    by: ClassVar[frozenset[str]] = frozenset({AGENT})
    job_name: Name
    job_id: str | None = None
    outcome: Literal["completed", "walltime", "cancelled", "failed", "never_submitted", "unknown"]
    message: Said = ""
    started_epoch_s: Epoch | None = None
    ended_epoch_s: Epoch | None = None


class PlacementPlanned(Event):
    """What is to be done at the sites, until the next plan. `holder`: which planner says so."""

    type: ClassVar[str] = "placement.planned"
    by: ClassVar[frozenset[str]] = frozenset({PLANNER})
    actions: tuple[Free, ...]
    estimates: tuple[Free, ...]
    reason: Reason
    holder: Annotated[str, Field(max_length=200)] = ""
