"""A scenario: a run, its sites, and what may go wrong, as a TOML file, field by field."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eventlog.config import RunConfig
from eventlog.errors import AtollError
from eventlog.events import Name, Positive
from ops.simulate.faults import KINDS

FOLDER = Path(__file__).parent / "scenarios"
MAX_NUMBERS = 1 << 17  # blocks of all epochs of a run: the virtual model has a number for each
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NotNegative = Annotated[int, Field(ge=0, le=10**6)]


class ScenarioInvalid(AtollError):
    """There is no such scenario, or it cannot be used; the text says why."""


class Table(BaseModel):
    """A table of the file. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Site(Table):
    """One site, or `count` of them named NAME-1, NAME-2, ..."""

    name: Name
    count: Positive = 1
    steps_per_s: Annotated[float, Field(gt=0)]  # inner steps
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the rate, drawn for each site
    start_s: Seconds = 1.0  # from the start of a trainer until it is ready
    joins_s: Annotated[tuple[Seconds, ...], Field(min_length=1)] = (0.0,)  # when it comes
    every_s: Seconds = 0.0  # the n-th of `count` comes n times this later
    stays_s: Seconds | None = None  # its job's walltime; None: without end
    returns: bool = True  # whether a job that has ended is followed by another
    requeue_s: Seconds = 5.0  # from a job's end to the next one's start
    snapshot_s: Seconds = 0.0  # that a snapshot takes to come; updates have few bits

    def names(self) -> list[str]:
        """Its own, or one for each of `count`."""
        return (
            [self.name] if self.count == 1 else [f"{self.name}-{n + 1}" for n in range(self.count)]
        )


class Told(Table):
    """A fault that the scenario tells, in whole, of a site by name or of a coordinator."""

    at_s: Seconds
    kind: str
    who: str
    duration_s: Seconds = 0.0
    number: int = 0

    @model_validator(mode="after")
    def _known(self) -> Told:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no fault; there are {', '.join(KINDS)}")
        return self


class Chance(Table):
    """Faults that the seed draws: `num` of them between `from_s` and `to_s`, kinds by weight."""

    num: tuple[NotNegative, NotNegative] = (0, 0)
    from_s: Seconds = 0.0
    to_s: Seconds = 0.0
    weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = {}

    @model_validator(mode="after")
    def _known(self) -> Chance:
        unknown = sorted(set(self.weights) - set(KINDS))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no fault; there are {', '.join(KINDS)}")
        if self.num[0] > self.num[1] or self.from_s > self.to_s:
            raise ValueError("num, and from_s to to_s, go from the smaller to the larger")
        if self.num[1] and not sum(self.weights.values()):
            raise ValueError("faults are to be drawn, and no kind has a weight above 0")
        return self


class Scenario(Table):
    """The whole file. `run` is a run's configuration as `atoll run create` reads it, `blocks` the
    number of blocks of an epoch, `coordinators` how many processes coordinate or stand by."""

    title: str
    sequences: Positive  # of an epoch
    sequence_tokens: Positive = 8
    coordinators: Positive = 1
    latency_s: tuple[Seconds, Seconds] = (0.002, 0.02)  # one way, of every message
    settle_s: Seconds = 600.0  # the run finishes within this time after the last fault
    check_every: Positive = 1  # a recount of the whole table after so many events
    overlaps: tuple[Literal["none", "delayed"], ...] = ()  # the run's, one after the other by seed
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    told: tuple[Told, ...] = ()
    chance: Chance = Chance()
    run: dict[str, Any]

    @model_validator(mode="after")
    def _names(self) -> Scenario:
        names = self.site_names()
        twice = next((one for one, num in Counter(names).items() if num > 1), "")
        if twice:
            raise ValueError(f"two sites are named {twice!r}")
        for fault in self.told:
            if fault.kind.startswith("coordinator "):
                is_there = bool(re.fullmatch(r"coordinator-[1-9]\d*", fault.who))
            else:
                is_there = fault.who in names
            if fault.who and not is_there:
                raise ValueError(f"{fault.kind!r} is told of {fault.who!r}, which is not there")
        return self

    @model_validator(mode="after")
    def _fits(self) -> Scenario:
        if self.latency_s[0] > self.latency_s[1]:
            raise ValueError("latency_s goes from the smaller to the larger")
        if self.config.target.rounds is None and self.num_numbers > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS} blocks in all epochs")
        return self

    def of(self, seed: int) -> Scenario:
        """What it is for this seed."""
        if not self.overlaps:
            return self
        overlap = self.overlaps[seed % len(self.overlaps)]
        outer = {**self.run.get("outer", {}), "overlap": overlap}
        return self.model_copy(update={"run": {**self.run, "outer": outer}})

    @property
    def config(self) -> RunConfig:
        """The run's configuration: the scenario's, with an outer step that adds exactly."""
        outer = {"lr": 1.0, "momentum": 0.0, "delta_codec": "fp32", "update_codec": "fp32"}
        given = {"name": "simulated", "model": {"model_type": "rehearsal"}, "data": {}, **self.run}
        if isinstance(given.get("outer", {}), dict):  # else it is no configuration
            given["outer"] = {**given.get("outer", {}), **outer}
        return RunConfig.model_validate(given)

    def site_names(self) -> list[str]:
        """The sites, in the order of the file."""
        return [name for site in self.sites for name in site.names()]

    @property
    def num_blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.sequences // self.config.data.block_sequences)

    @property
    def num_numbers(self) -> int:
        """How many numbers the virtual model needs: one for each block of each epoch."""
        config = self.config
        epoch_tokens = self.sequences * self.sequence_tokens
        if config.target.epochs is not None:
            epochs = config.target.epochs
        elif config.target.tokens is not None:
            epochs = config.target.tokens // epoch_tokens + 1
        else:
            epochs = 64
        return (epochs + 1) * self.num_blocks


def names() -> list[str]:
    """Scenarios that come with atoll."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Scenario:
    """A scenario by name, or from a file of one's own. Raises ScenarioInvalid."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text())
        return Scenario.model_validate(content)
    except FileNotFoundError as error:
        known = ", ".join(names())
        raise ScenarioInvalid(f"{name} is no scenario: give one of {known}, or a file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioInvalid(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ScenarioInvalid(f"{path}: {where}: {first['msg']}") from error
