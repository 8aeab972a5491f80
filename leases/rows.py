"""Rows of the lease table as policies, hubs and views read them: frozen and typed. Those that are
made anew for every decision are tuples, which are made faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from eventlog.events import Token


class Run(NamedTuple):
    """The run's own row."""

    name: str
    state: str  # none, running, paused, stopping, finished
    reason: str
    read_only: str
    term: int
    holder: str
    term_ticks: int
    ticks: int
    decision: Token
    round: int
    version: int
    merged_tokens: int
    merged_blocks: int
    outstanding_tokens: int
    outstanding_blocks: int
    live: int
    parameters_blob: str
    initial_digest: str
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a site."""

    token: Token
    site: str
    state: str  # live, departing, departed
    code: str
    reason: str
    drain: bool
    last_seq: int
    silent_ticks: int  # of the current term, since its last event
    version: int | None  # the version it proved to hold
    mismatches: int
    phase: str
    step: int
    tokens: int
    tokens_per_s: float
    walltime_left_s: float | None
    loss: float | None
    merged_blocks: int
    merged_tokens: int
    refusals: int  # in a row, for its deltas' values (R14)
    stalled_ticks: int  # of the current term, since its trainer showed progress (R10)
    step_s: float  # the slowest of its recent steps; 0: not known
    backoff_until: int  # tick of the run before which the site may not join again (R14)
    missing: str | None  # a blob that it needs and cannot have


@dataclass(frozen=True, slots=True)
class Join:
    """A request to be admitted that is not answered yet."""

    token: Token
    site: str
    predecessor: Token | None
    successor: bool
    manifest_digest: str
    arithmetic: dict[str, str]
    incarnation_seen: int | None  # the live incarnation's last event when the join stood


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a join: waiting, admitted (as `incarnation`), refused or superseded."""

    state: str
    incarnation: int | None
    code: str
    final: bool
    reason: str


class Round(NamedTuple):
    """An outer step: open, then a logged cut, then committed."""

    round: int
    state: str  # open, closed, committed
    base_version: int
    quorum: int
    grace_ticks: int
    deadline_ticks: int
    opened_ticks: int
    cut: Token | None
    tokens: int
    seq: int  # of its RoundOpened


@dataclass(frozen=True, slots=True)
class Delta:
    """A published delta and what became of it."""

    token: Token
    incarnation: int
    site: str
    state: str  # undecided, cut, merged, refused, void
    base_version: int
    blob: str
    codec: str
    norm: float
    num_blocks: int
    tokens: int
    last: bool
    weight: float | None
    reason: str
    ticks: int  # of the run when it was published
    num_bytes: int  # of its blob, as it says


@dataclass(frozen=True, slots=True)
class Block:
    """A touched block of an epoch, and the lease it was last granted under."""

    epoch: int
    block: int
    state: str
    lease: Token


@dataclass(frozen=True, slots=True)
class Version:
    """The outcome of a committed round, by digests."""

    version: int
    seq: int  # of its RoundCommitted
    round: int
    update_blob: str
    update_codec: str
    parameters_digest: str
    momentum_digest: str
    residual_digest: str
    tokens: int
    merged_tokens: int
    loss: float | None
    ticks: int  # of the run when it was committed
    snapshot_blob: str | None
