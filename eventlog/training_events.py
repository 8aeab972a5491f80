"""Events of training: rounds, leases and blocks; deltas, the versions made of them, and blobs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from eventlog.event import (
    COORDINATOR,
    OPERATOR,
    SITE,
    Blocks,
    Codec,
    Count,
    Digest,
    Event,
    Name,
    Part,
    Positive,
    Reason,
    Seconds,
    Token,
)

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
    seconds: dict[str, float] = Field(default_factory=dict)  # per phase of the coordinator
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
    # per phase (`eventlog.phases`), since it last said this
    seconds: dict[str, float] = Field(default_factory=dict)
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
