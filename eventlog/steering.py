"""Tables of a run's configuration by which it is judged and steered: evaluation, divergence, the
centralised baseline, and where a fork begins (docs/steering.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from eventlog.events import Positive
from eventlog.section import PositiveFloat, Section


class Evaluation(Section):
    """How good versions are on held-out text, measured within the run (docs/steering.md)."""

    every_rounds: Annotated[int, Field(ge=0)] = 0  # each so many versions, by a live site; 0: never
    max_tokens: Positive = 65_536  # of held-out text, in whole sequences, from its start
    # how long an evaluation may take before the trainer is taken to hang (R10)
    most_s: Annotated[float, Field(gt=0, le=7200)] = 600.0


class Divergence(Section):
    """When a run pauses by itself because it has come apart (docs/steering.md)."""

    action: Literal["pause", "none"] = "pause"  # "none": the rule is off
    window: Annotated[int, Field(ge=4, le=1000)] = 16  # versions that make up what is usual
    patience: Annotated[int, Field(ge=1, le=100)] = 3  # versions in a row that are above it
    nats: PositiveFloat = 0.5  # above the window's median by at least so much a token,
    deviations: PositiveFloat = 8.0  # and by so many robust standard deviations of the window


class Baseline(Section):
    """The same model trained centralised, for comparison (`atoll baseline`). What is not given is
    derived: the batch is a site's, and the rate goes with the root of the batch."""

    batch_sequences: Positive | None = None  # has to divide data.block_sequences
    lr: PositiveFloat | None = None  # its peak


class Start(Section):
    """Where a forked run begins."""

    # of the schedules, that its parent had behind it: they go on from there
    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
