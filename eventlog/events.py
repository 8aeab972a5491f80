"""Every event of a run, in the order a run meets them.

An event is a fact in the past tense. It is frozen, and checked when it is made and when it is
read. `by` says who may write it; the subject it stands on proves who did (R6). A `Token` is
(sequence, event id) of another event of the log: the only way events name each other (R3).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from eventlog.keys import PUBLIC_KEY

MAX_COUNT = 2**62  # every number of an event fits a signed 64-bit integer, with room for a sum
MAX_REASON = 2000  # characters
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Token = tuple[Count, str]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON)]  # for a person (P6)
Blocks = Annotated[tuple[Count, ...], Field(min_length=1, max_length=100_000)]
Subject = Annotated[
    str, Field(pattern=r"^(coordinator|operator|planner|(site|agent)\.[a-z0-9][a-z0-9-]{0,62})$")
]
PublicKey = Annotated[str, Field(pattern=PUBLIC_KEY)]
Codec = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]

OPERATOR, COORDINATOR, SITE, AGENT, PLANNER = (
    "operator",
    "coordinator",
    "site",
    "agent",
    "planner",
)


class Part(BaseModel):
    """A piece of an event: frozen, and deaf to optional fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Event(Part):
    """Base of all events. `type` and `schema_version` name the schema, `by` the sources' kinds."""

    type: ClassVar[str]
    schema_version: ClassVar[int] = 1
    by: ClassVar[frozenset[str]]


def shortened(text: str) -> str:
    """A reason made of parts of any length (names of sites, an operator's words), cut to fit."""
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 2] + " …"


# -- the run ------------------------------------------------------------------------------------


class DataShape(Part):
    """What the data manifest says that leases and weights depend on (P5).

    num_sequences: training sequences in one epoch's blocks; sequence_tokens: tokens a sequence
    trains; block_sequences: sequences per block; the last block of an epoch may be short.
    """

    manifest_digest: Digest
    num_sequences: Positive
    sequence_tokens: Positive
    block_sequences: Positive


class Lineage(Part):
    """Where a forked run comes from.

    `made`: the event of the parent's log that made the version (its `RoundCommitted`, or for
    version 0 its `RunCreated`): which of two histories of one name is meant. `tokens`: merged into
    the version, by the parent and by its own.
    """

    run: Name
    version: Count
    parameters_digest: Digest
    made: Token | None = None
    tokens: Count = 0


class NamedKey(Part):
    """A public key (Ed25519, as `eventlog.keys` writes it) that may sign for a subject."""

    subject: Subject
    key: PublicKey


class RunCreated(Event):
    """A run exists: its configuration, data and initial parameters are fixed from here on.

    `keys`: who signs; where the operator's own is among them, this event is signed by it.
    """

    type: ClassVar[str] = "run.created"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR})
    config: dict[str, Any]
    config_digest: Digest
    data: DataShape
    parameters_blob: Digest
    parameters_digest: Digest
    num_parameters: Positive
    arithmetic: dict[str, Digest]  # digest per canonical operation, in the order they run
    arithmetic_digest: Digest  # of all of them
    lineage: Lineage | None = None
    keys: Annotated[tuple[NamedKey, ...], Field(max_length=10_000)] = ()


class KeysNamed(Event):
    """From here on `keys` may sign for their subjects, and `dropped` may not any more."""

    type: ClassVar[str] = "run.keys_named"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR})
    keys: Annotated[tuple[NamedKey, ...], Field(max_length=10_000)] = ()
    dropped: Annotated[tuple[NamedKey, ...], Field(max_length=10_000)] = ()
    reason: Reason


class RunPaused(Event):
    type: ClassVar[str] = "run.paused"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR, COORDINATOR})
    reason: Reason


class RunResumed(Event):
    type: ClassVar[str] = "run.resumed"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR})
    reason: Reason


class RunStopped(Event):
    """A request to end the run well: started blocks are delivered, then sites leave (R2)."""

    type: ClassVar[str] = "run.stopped"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR})
    reason: Reason


class DrainRequested(Event):
    """A request that one site leaves well."""

    type: ClassVar[str] = "run.drain_requested"
    by: ClassVar[frozenset[str]] = frozenset({OPERATOR})
    site: Name
    reason: Reason


class RunFinished(Event):
    """The run has ended; everything not merged is returned, later site events are void (R15).
    `through`, `log_digest`: the anchor to publish (R18); signed, where a key is named.
    """

    type: ClassVar[str] = "run.finished"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    outcome: Literal["target", "stopped"]
    version: Count
    tokens: Count
    undecided: tuple[Token, ...] = ()
    num_returned: Count
    parameters_digest: Digest
    momentum_digest: Digest
    residual_digest: Digest
    through: Count | None = None
    log_digest: Digest | None = None
    reason: Reason


# -- the coordinator and the sites' lives ---------------------------------------------------------


class CoordinatorElected(Event):
    """A claim of the term, which is this event's own sequence (R5). `software`: versions of what
    coordinates from here on."""

    type: ClassVar[str] = "coordinator.elected"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    holder: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Reason
    software: dict[str, str] | None = None


class CoordinatorTick(Event):
    type: ClassVar[str] = "coordinator.tick"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    tick: Positive  # of this term, from 1


class SiteJoined(Event):
    """A site asks to be admitted; it fences nothing (R11)."""

    type: ClassVar[str] = "site.joined"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    hardware: dict[str, str]
    software: dict[str, str]
    manifest_digest: Digest
    arithmetic: dict[str, Digest]  # digests of the canonical operations a site runs
    walltime_left_s: Seconds | None = None
    predecessor: Token | None = None  # the incarnation whose node-local lock the joiner holds
    successor: bool = False


class SiteAdmitted(Event):
    """A new incarnation lives; its token is this event's (sequence, id)."""

    type: ClassVar[str] = "site.admitted"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    site: Name
    join: Token
    reason: Reason


class SiteRefused(Event):
    """A join is refused; `final`: asking again would change nothing."""

    type: ClassVar[str] = "site.refused"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    site: Name
    join: Token
    code: Literal["manifest", "version", "arithmetic", "twin", "backoff", "finished"]
    final: bool
    reason: Reason


# -- rounds and leases ----------------------------------------------------------------------------


class Quota(Part):
    """How many blocks one incarnation is to train in a round, at least one."""

    incarnation: Token
    blocks: Positive


class RoundOpened(Event):
    type: ClassVar[str] = "round.opened"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    round: Positive
    base_version: Count
    quotas: tuple[Quota, ...]
    quorum: Positive
    grace_ticks: Count
    deadline_ticks: Positive
    reason: Reason


class LeaseGranted(Event):
    """Blocks of one epoch for one incarnation; the lease token is this event's (sequence, id).

    `quota`: the incarnation's blocks in the open round, where it was admitted after it opened.
    """

    type: ClassVar[str] = "lease.granted"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    incarnation: Token
    site: Name
    epoch: Count
    blocks: Blocks
    quota: Positive | None = None
    reason: Reason


class LeaseReclaimed(Event):
    """R4: undelivered blocks of a live incarnation go back, each as (epoch, block)."""

    type: ClassVar[str] = "lease.reclaimed"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    incarnation: Token
    site: Name
    blocks: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1, max_length=100_000)]
    reason: Reason


class LeaseStolen(Event):
    """R2: unstarted blocks go back to available, for others to be granted.

    `to`: the idle incarnation whose quota in the open round grows by what the other's shrinks.
    """

    type: ClassVar[str] = "lease.stolen"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    incarnation: Token
    site: Name
    epoch: Count
    blocks: Blocks
    to: Token | None = None
    reason: Reason


class Transfer(Part):
    """A blob on its way to the store (up) or from it: `bytes_per_s` is that of this attempt, what
    was there before it does not count."""

    way: Literal["up", "down"]
    done_bytes: Count
    of_bytes: Positive
    bytes_per_s: Seconds


class Heartbeat(Event):
    """What the trainer has done; sent only when the site has been silent otherwise (R9)."""

    type: ClassVar[str] = "site.heartbeat"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    phase: Literal["starting", "waiting", "training", "publishing", "applying", "evaluating"]
    step: Count  # inner steps of this incarnation
    tokens: Count  # tokens trained by this incarnation
    tokens_per_s: Seconds
    version: Count | None = None  # the version its parameters are based on
    walltime_left_s: Seconds | None = None
    step_s: Seconds | None = None  # the slowest of the trainer's recent steps (R10)
    missing: Digest | None = None  # a blob that it needs and cannot be had from the store
    transfer: Transfer | None = None  # the largest that goes on, for people


class BlockStarted(Event):
    """The incarnation is about to train a block under a lease; trained only once this is folded."""

    type: ClassVar[str] = "block.started"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    epoch: Count
    block: Count
    lease: Token


class BlockCompleted(Event):
    type: ClassVar[str] = "block.completed"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    epoch: Count
    block: Count
    lease: Token
    loss: float  # mean nats per token; may be non-finite, which is worth knowing
    seconds: Seconds


# -- deltas and versions --------------------------------------------------------------------------


class DeltaBlock(Part):
    """A block in a delta: under which lease it was trained, and its tokens by the manifest."""

    epoch: Count
    block: Count
    lease: Token
    tokens: Positive


class DeltaPublished(Event):
    """Anchor minus local over whole blocks (R12); its weight is computed from the ledger (P5).

    `last`: the incarnation departs after it, so it may stand beside an undecided one.
    """

    type: ClassVar[str] = "delta.published"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    base_version: Count
    blocks: Annotated[tuple[DeltaBlock, ...], Field(min_length=1, max_length=100_000)]
    blob: Digest
    num_bytes: Positive
    codec: Codec
    norm: float  # L2 norm of the delta over all parameters
    max_abs: float
    last: bool = False


class DeltaRefused(Event):
    """A delta is not merged; blocks its incarnation still holds go back.

    `values`: the cause lies in the delta's own values or form, and counts for R14.
    """

    type: ClassVar[str] = "delta.refused"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    delta: Token
    site: Name
    code: Literal["void", "stale", "blob", "form", "nonfinite", "outlier", "follows"]
    values: bool
    reason: Reason


class Cut(Part):
    """One delta of a cut. tokens: from the ledger; weight: tokens / all tokens, float64."""

    delta: Token
    site: Name
    tokens: Positive
    weight: Annotated[float, Field(gt=0, le=1)]


class RoundClosed(Event):
    """The cut is logged: which deltas, in which order, with which weights. The merge follows."""

    type: ClassVar[str] = "round.closed"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    round: Positive
    base_version: Count
    deltas: Annotated[tuple[Cut, ...], Field(min_length=1)]
    tokens: Positive
    reason: Reason


class RoundCommitted(Event):
    """The outer step of a round is taken. `through`, `log_digest`: R18's anchor."""

    type: ClassVar[str] = "round.committed"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    round: Positive
    cut: Token
    version: Positive
    update_blob: Digest
    update_bytes: Positive
    update_codec: Codec
    parameters_digest: Digest
    momentum_digest: Digest
    residual_digest: Digest
    tokens: Positive  # merged by this round
    through: Count
    log_digest: Digest
    seconds: dict[str, float] = {}  # per phase of the coordinator
    reason: Reason


class EpochClosed(Event):
    type: ClassVar[str] = "epoch.closed"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    epoch: Count
    blocks: Positive
    tokens: Count
    num_quarantined: Count
    reason: Reason


class BlockQuarantined(Event):
    type: ClassVar[str] = "block.quarantined"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    epoch: Count
    block: Count
    reason: Reason


class VersionApplied(Event):
    """The site holds version `version`; its digest against the coordinator's is plain to see."""

    type: ClassVar[str] = "version.applied"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    version: Count
    parameters_digest: Digest
    source: Literal["initial", "update", "snapshot"]
    seconds: dict[str, float] = {}  # per phase (`eventlog.phases`), since it last said this
    stall_s: Seconds = 0.0  # in which the trainer stood still: blocked and idle


class SnapshotSaved(Event):
    """Parameters, momentum and residual of a version are stored and verified as one blob."""

    type: ClassVar[str] = "snapshot.saved"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    version: Positive
    blob: Digest
    num_bytes: Positive
    seconds: Seconds = 0.0
    reason: Reason


class BlobsReleased(Event):
    """R20: these blobs are no longer needed and may vanish from here on."""

    type: ClassVar[str] = "blobs.released"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    blobs: Annotated[tuple[Digest, ...], Field(min_length=1)]
    reason: Reason


class EvaluationCompleted(Event):
    type: ClassVar[str] = "evaluation.completed"
    by: ClassVar[frozenset[str]] = frozenset({SITE, OPERATOR})
    version: Count
    split: Literal["heldout"] = "heldout"
    num_tokens: Positive
    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float
    seconds: Seconds = 0.0  # that it took, where the trainer stood still for it


# -- leaving --------------------------------------------------------------------------------------


class SiteDeparting(Event):
    """A site says that it leaves, and has delivered what it could (P7)."""

    type: ClassVar[str] = "site.departing"
    by: ClassVar[frozenset[str]] = frozenset({SITE})
    code: Literal["drained", "walltime", "unfit", "finished", "trainer"]
    reason: Reason


class SiteDeparted(Event):
    """An incarnation has ended; whatever it had not delivered is returned (R4).

    `backoff_ticks`: for how long a join of the site is refused (R14).
    """

    type: ClassVar[str] = "site.departed"
    by: ClassVar[frozenset[str]] = frozenset({COORDINATOR})
    incarnation: Token
    site: Name
    code: Literal["drained", "walltime", "lost", "unfit", "replaced", "finished", "trainer"]
    backoff_ticks: Count = 0
    reason: Reason


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
    actions: tuple[dict[str, Any], ...]
    estimates: tuple[dict[str, Any], ...]
    reason: Reason
    holder: Annotated[str, Field(max_length=200)] = ""


EVENTS: dict[str, type[Event]] = {kind.type: kind for kind in Event.__subclasses__()}
