"""A run's configuration: typed, each field explained beside it, checked when it is built.

The operator writes it as TOML (`atoll run create CONFIG`); `RunCreated` carries it, so every
process of the run has the same. Nothing in it is local to a machine but `data.path`, which only
`run create` reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from eventlog.events import Name, Positive
from eventlog.inner import Inner
from eventlog.section import FROM_A_LOG, PositiveFloat, Seconds, Section, Share
from eventlog.steering import Baseline, Divergence, Evaluation, Start

CodecName = Literal["fp32", "bf16", "int8", "4-bit", "top-k"]

MIN_OUTLIER_FACTOR = 2.0
MAX_BLOCKS_PER_ROUND = 10_000  # the coordinator chooses a round's blocks in one go


class Target(Section):
    """When the run is done: exactly one of the three."""

    tokens: Positive | None = None  # merged ones
    rounds: Positive | None = None  # committed ones
    epochs: Positive | None = None  # passes over the training data

    @model_validator(mode="after")
    def _one(self) -> Target:
        if sum(value is not None for value in (self.tokens, self.rounds, self.epochs)) != 1:
            raise ValueError("give exactly one of tokens, rounds, epochs")
        return self


class Data(Section):
    """Blocks of samples."""

    path: str = ""  # token files of `atoll data build`, where `run create` finds them
    block_sequences: Positive = 64  # sequences of one block, the unit of leasing


class Outer(Section):
    """The outer step on the token-weighted mean of deltas."""

    # Nesterov (DiLoCo, arXiv:2311.08105), or the mean itself: lr = 1, momentum = 0, no schedule
    optimizer: Literal["nesterov", "average"] = "nesterov"
    lr: PositiveFloat = 0.7  # η, at its peak; "average": 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # μ; "average": 0
    warmup: Share = 0.0  # share of the run's progress over which η rises from 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of η after that
    # share of η's peak that "linear" and "cosine" end at
    final_lr: Annotated[float, Field(gt=0, le=1)] = 1.0
    delta_codec: CodecName = "bf16"  # sites to coordinator; docs/codecs.md says which to choose
    update_codec: CodecName = "bf16"  # coordinator to sites; the rest is carried on
    max_staleness: Annotated[int, Field(ge=0, le=16)] = 1  # S: versions a delta may be late
    # "delayed": a site trains on while its delta is on its way, and folds the version in later
    overlap: Literal["none", "delayed"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _average(cls, values: Any) -> Any:
        """What "average" means need not be written out."""
        if isinstance(values, dict) and values.get("optimizer") == "average":
            return {"lr": 1.0, "momentum": 0.0, **values}
        return values

    @model_validator(mode="after")
    def _agrees_with_itself(self, info: ValidationInfo) -> Outer:
        plain = (self.lr, self.momentum, self.warmup, self.schedule) == (1.0, 0.0, 0.0, "constant")
        if self.optimizer == "average" and not plain:
            raise ValueError(
                'optimizer = "average" is lr = 1, momentum = 0, warmup = 0 and a constant schedule '
                'by definition; leave them out, or give optimizer = "nesterov"'
            )
        if self.overlap == "delayed" and not self.max_staleness:
            raise ValueError(
                'overlap = "delayed" with max_staleness = 0: a site that leaves delivers beside a '
                "delta that is not merged yet, and would lose that work; give max_staleness = 1"
            )
        if (self.schedule == "constant") != (self.final_lr == 1.0):
            raise ValueError(
                f'schedule = "{self.schedule}" with final_lr = {self.final_lr:g}: "linear" and '
                '"cosine" need a final_lr below 1, "constant" has none'
            )
        if self.schedule != "constant" and self.warmup == 1 and info.context != FROM_A_LOG:
            raise ValueError(
                f'warmup = 1 with schedule = "{self.schedule}": a rate that rises until the end '
                'never falls; give a shorter warmup, or schedule = "constant" without final_lr'
            )
        return self


class Rounds(Section):
    """When a round closes though not all expected deltas are in (R13)."""

    quorum: Positive = 1  # deltas enough to close after the grace
    grace_s: Seconds = 60.0  # from the quorum on; as long as the deadline: no round closes by it
    deadline_s: Annotated[Seconds, Field(gt=0)] = 1800.0  # from the round's opening on

    @model_validator(mode="after")
    def _agree(self, info: ValidationInfo) -> Rounds:
        if self.grace_s > self.deadline_s and info.context != FROM_A_LOG:
            default = "" if "grace_s" in self.model_fields_set else " (its default)"
            raise ValueError(
                f"grace_s = {self.grace_s:g}{default} is longer than deadline_s = "
                f"{self.deadline_s:g}, which closes every round before any grace is over; give a "
                "shorter grace_s, or the same to wait for everybody until the deadline"
            )
        return self


class Limits(Section):
    """What is borne before somebody is given up (R10, R14). Each bound is capped, so that a typo
    cannot let a hung site hold its blocks for ever."""

    compile_s: Annotated[float, Field(gt=0, le=7200)] = 600.0  # a trainer's first step, a command
    transfer_s: Annotated[float, Field(gt=0, le=86400)] = 1800.0  # fetch a version, store a delta
    refusals: Positive = 3  # deltas refused in a row for their values, then the site departs
    backoff_s: Annotated[float, Field(ge=0, le=86400)] = 120.0  # and may not join for so long
    quarantine: Positive = 3  # refused deltas that hold a block, then it is quarantined
    # a delta so many times as large as others is refused as an outlier (ADR-0009); 0: none is
    outlier_factor: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 20.0

    @model_validator(mode="after")
    def _spares_healthy_deltas(self) -> Limits:
        if 0 < self.outlier_factor < MIN_OUTLIER_FACTOR:
            raise ValueError(
                f"outlier_factor = {self.outlier_factor:g} would refuse healthy deltas; give "
                f"{MIN_OUTLIER_FACTOR:g} or more, or 0 to switch the guard off"
            )
        return self


class Snapshots(Section):
    """How often the whole state of a version is stored, and how far back one can recompute."""

    every_versions: Positive = 5  # a snapshot each so many versions
    # and when so long has passed since the last, counted in ticks; 0: never
    every_minutes: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    retention: Literal["all", "recovery"] = "recovery"  # which deltas and updates are kept


class RunConfig(Section):
    """The whole configuration of a run. Raises pydantic.ValidationError."""

    name: Name  # of the run: a-z, 0-9 and -, at most 63
    # of initial parameters and of the order of each epoch's blocks
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    # one number that gives tick, heartbeat, K and margins
    lease_s: Annotated[Seconds, Field(gt=0)] = 30.0
    # a site whose decode or step differs in any bit: refused, or takes a snapshot of every version
    arithmetic: Literal["strict", "follow"] = "strict"
    # where blobs are kept: "broker", or "s3://bucket/prefix" (atoll[s3] at every process)
    blobs: Annotated[str, Field(pattern=r"^(broker|s3://[^/\s@?#]+(/[^\s@?#]+)?)$")] = "broker"
    target: Target
    data: Data
    # a transformers configuration: model_type and its fields; or, for `run create` to write out as
    # such, "path" (of a config.json, other keys change it) or "checkpoint" (with its weights)
    model: dict[str, Any]
    inner: Inner = Inner()
    outer: Outer = Outer()
    rounds: Rounds = Rounds()
    limits: Limits = Limits()
    snapshots: Snapshots = Snapshots()
    evaluation: Evaluation = Evaluation()
    divergence: Divergence = Divergence()
    baseline: Baseline = Baseline()
    start: Start = Start()

    @model_validator(mode="after")
    def _fits(self) -> RunConfig:
        block, batch = self.data.block_sequences, self.inner.batch_sequences
        if block % batch:
            raise ValueError(
                f"inner.batch_sequences = {batch} does not divide data.block_sequences = {block}"
            )
        if self.blocks_per_round > MAX_BLOCKS_PER_ROUND:
            raise ValueError(
                f"inner.steps = {self.inner.steps} is {self.blocks_per_round} blocks a round, at "
                f"most are {MAX_BLOCKS_PER_ROUND}; make blocks larger or rounds shorter"
            )
        if block % (self.baseline.batch_sequences or batch):
            raise ValueError(
                f"baseline.batch_sequences = {self.baseline.batch_sequences} does not divide "
                f"data.block_sequences = {block}"
            )
        if not self.model.keys() & {"model_type", "path", "checkpoint"}:
            raise ValueError(
                'model.model_type is missing (for example "qwen3"), or path, or checkpoint'
            )
        Timing.of(self.lease_s)
        return self

    @classmethod
    def recorded(cls, content: Any) -> RunConfig:
        """The configuration that a log holds. What can be carried out stays valid there, though a
        new run would be refused for it: a rule that came later rewrites no history, and pauses
        none. Raises pydantic.ValidationError."""
        if isinstance(content, dict) and "divergence" not in content:
            content = {**content, "divergence": {"action": "none"}}
        return cls.model_validate(content, context=FROM_A_LOG)

    @property
    def steps_per_block(self) -> int:
        """Inner steps that train one whole block."""
        return self.data.block_sequences // self.inner.batch_sequences

    @property
    def blocks_per_round(self) -> int:
        """H in whole blocks, at least one: the quota of the fastest site."""
        return max(1, round(self.inner.steps / self.steps_per_block))


@dataclass(frozen=True, slots=True)
class Timing:
    """What `lease_s` gives (R8, R9). Ticks are the only time a fold knows."""

    lease_s: float
    tick_s: float

    BASE_K = 8
    HEARTBEATS_PER_LEASE = 4
    MIN_HEARTBEAT_S = 1.0

    @classmethod
    def of(cls, lease_s: float) -> Timing:
        """Raises ValueError where the inequality K ticks >= 4 heartbeats cannot hold."""
        shortest = cls.HEARTBEATS_PER_LEASE * cls.MIN_HEARTBEAT_S
        if lease_s < shortest:
            raise ValueError(
                f"lease_s = {lease_s} is shorter than four heartbeats of at least 1 s each; "
                f"give {shortest:g} or more"
            )
        return cls(lease_s, lease_s / cls.BASE_K)

    def heartbeat_s(self, num_live: int) -> float:
        """The interval at which a silent site reports: max(1 s, live / 50 s)."""
        return max(self.MIN_HEARTBEAT_S, num_live / 50)

    def lost_ticks(self, num_live: int) -> int:
        """K: ticks after which a silent site is lost; at least four heartbeats."""
        heartbeats = self.HEARTBEATS_PER_LEASE * self.heartbeat_s(num_live)
        return max(self.BASE_K, math.ceil(heartbeats / self.tick_s))

    def ticks(self, seconds: float) -> int:
        """The ticks that cover a duration, at least one where it is positive."""
        return math.ceil(seconds / self.tick_s)

    @property
    def margin_s(self) -> float:
        """Kept free before a deadline or walltime for delivering what is trained."""
        return self.lease_s
