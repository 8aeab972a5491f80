"""The run's own events: its life, its coordinators', and its sites', from joining to leaving."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from eventlog.event import (
    COORDINATOR,
    OPERATOR,
    SITE,
    Count,
    Digest,
    Event,
    Free,
    Name,
    Part,
    Positive,
    PublicKey,
    Reason,
    Seconds,
    Subject,
    Token,
)

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
    config: Free
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
