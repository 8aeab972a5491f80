"""The sites file: which queues a user may stand in, with what shapes and caps. Checked as a whole.

One TOML file for planner and agents; each agent reads its own `[[site]]` of it. What a centre's
documentation says of its limits belongs here, with the date when it was read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from eventlog.errors import AtollError
from eventlog.events import Name
from ops.placement.caps import Cap
from ops.placement.shapes import Limits, Shape, SiteProfile
from ops.placement.slurm.values import duration_s
from ops.toml import read_toml

Time = Annotated[int, Field(ge=1)]  # seconds, written as 90s, 30m, 12h, 2d or HH:MM:SS
Option = Annotated[str, Field(pattern=r"^--?[A-Za-z][^\n]*$")]
Note = Annotated[str, Field(pattern=r"^[^\n]*$")]
Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?\Z")


class SitesInvalid(AtollError):
    """A sites file that cannot be used; a line for each problem."""


class Part(BaseModel):
    """A table of the file. An unknown key is an error: a typo must not be a missing cap."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def seconds(value: Any) -> Any:
    """A time as a person or Slurm writes it, in seconds; what is none of that is left as it is."""
    if isinstance(value, str):
        number, unit = value[:-1], value[-1:]
        if unit in _UNITS and _NUMBER.match(number):
            return round(float(number) * _UNITS[unit])
        if ":" in value or "-" in value:
            return duration_s(value) or value
    return value


class ShapeTable(Part):
    """One shape: nodes and time limit."""

    nodes: Annotated[int, Field(ge=1)]  # whole ones
    walltime: Time  # its time limit

    _read = field_validator("walltime", mode="before")(seconds)


class Etiquette(Part):
    """What the agent may cost the centre's controller; the defaults are what a centre bears."""

    poll: Time = 120  # between two looks at the queue (squeue, sinfo, scontrol show)
    probes: Annotated[int, Field(ge=0)] = 12  # sbatch --test-only within `probes_within`
    probes_within: Time = 600  # no window of this length holds more
    submissions_a_day: Annotated[int, Field(ge=0)] = 24  # sbatch within any 24 hours
    max_queued: Annotated[int, Field(ge=0)] = 4  # jobs of ours that wait at a time
    timeout: Time = 120  # of one command; longer than the controller's own
    settle: Time = 300  # before a submission without an answer counts as never made
    backoff: Time = 60  # after the first failure; doubled from there, up to half an hour

    _read = field_validator("poll", "probes_within", "timeout", "settle", "backoff", mode="before")(
        seconds
    )

    def caps(self) -> dict[str, Cap]:
        """By kind of command."""
        return {
            "polls": Cap(1, self.poll),
            "probes": Cap(self.probes, self.probes_within),
            "submissions": Cap(self.submissions_a_day, 86_400.0),
        }


class LimitsTable(Part):
    """What the planner keeps to at this site; see `shapes.Limits`."""

    max_pending: Annotated[int, Field(ge=0)] = 2  # jobs that wait at a time
    max_chain: Annotated[int, Field(ge=1)] = 50  # jobs of a run that follow each other here
    budget_node_hours: Annotated[float, Field(gt=0)] | None = None  # of the project, for a run
    min_walltime: Time = 600  # a shorter job is not asked for
    fast_failure: Time = 120  # a job that failed or ended within this time counts as one
    max_fast_failures: Annotated[int, Field(ge=1)] = 3  # in a row, after which nothing is asked
    forgive: Time = 21_600  # failures longer ago than this count no more

    _read = field_validator("min_walltime", "fast_failure", "forgive", mode="before")(seconds)


class Site(Part):
    """One job slot at one centre: where it stands in which queue, and how a job of it begins."""

    name: Name  # of the site of the run
    partition: str  # Slurm's
    shapes: Annotated[tuple[ShapeTable, ...], Field(min_length=1)]
    speed: Annotated[float, Field(gt=0)]  # tokens a second of one node; a share, where unknown
    centre: Name | None = None  # sites of one centre share the caps; none: a centre of its own
    account: str | None = None  # Slurm's, that is charged
    start_up: Annotated[int, Field(ge=0)] = 60  # from a job's start to its first step
    options: tuple[Option, ...] = ()  # more lines for #SBATCH: --gpus-per-node=8, --qos=normal
    data: str = "tokens"  # token files at the site
    command: str = "atoll"  # how a job calls it
    site_options: tuple[str, ...] = ()  # more for `atoll site run`
    broker: str | None = None  # as jobs reach it; none: they find it in their environment
    setup: str = ""  # lines of the script before atoll: module load, source .../activate
    template: str | None = None  # a script of one's own; beside the sites file
    credentials: str | None = None  # the file that `atoll broker add-site` made, as jobs find it
    # so long before the limit Slurm warns the script, which passes it on
    signal: Time | None = None
    notes: tuple[Note, ...] = ()  # comments of the script: where its facts stand, how it was tried
    needs: dict[Key, str] = {}  # fields or values without which no script is made: what each is
    values: dict[Key, str] = {}  # what {{NAME}} stands for in this site's texts
    login_shell: bool = False  # scheduler commands exist only in one
    slurm_conf: str = ""  # of another cluster than this login node's own
    limits: LimitsTable = LimitsTable()
    etiquette: Etiquette = Etiquette()
    stop_file: str = ""  # where there is such a file, the agent asks this centre nothing

    _read = field_validator("start_up", "signal", mode="before")(seconds)

    @property
    def missing(self) -> list[str]:
        """The fields and values it needs that nobody has filled in."""
        return [name for name in self.needs if not (self._own(name) or self.values.get(name))]

    def _own(self, name: str) -> object:
        return name in self.model_fields_set and getattr(self, name)

    @model_validator(mode="after")
    def _caps_agree(self) -> Site:
        if self.limits.max_pending > self.etiquette.max_queued:
            raise ValueError(
                f"limits.max_pending = {self.limits.max_pending} is more than "
                f"etiquette.max_queued = {self.etiquette.max_queued}, which the agent keeps to"
            )
        return self

    def profile(self) -> SiteProfile:
        """What the planner sees of it."""
        limits = self.limits
        return SiteProfile(
            name=self.name,
            partition=self.partition,
            shapes=tuple(sorted(Shape(one.nodes, one.walltime) for one in self.shapes)),
            speed=self.speed,
            limits=Limits(
                max_pending=limits.max_pending,
                max_submissions_a_day=self.etiquette.submissions_a_day,
                max_chain=limits.max_chain,
                budget_node_hours=limits.budget_node_hours,
                min_walltime_s=limits.min_walltime,
                fast_failure_s=limits.fast_failure,
                max_fast_failures=limits.max_fast_failures,
            ),
            centre=self.centre,
            start_up_s=float(self.start_up),
            account=self.account,
        )


class Sites(Part):
    """The whole file."""

    site: Annotated[tuple[Site, ...], Field(min_length=1)]
    replan: Time = 600  # the longest time between two plans of a planner

    _read = field_validator("replan", mode="before")(seconds)

    @model_validator(mode="after")
    def _each_once(self) -> Sites:
        names = [one.name for one in self.site]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"site {min(twice)} stands there twice")
        return self

    def named(self, name: str) -> Site:
        """One site. Raises SitesInvalid, naming those there are."""
        for one in self.site:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.site)
        raise SitesInvalid(f"the sites file has no site {name}; it has {known}")


def load(path: Path) -> Sites:
    """The checked file. Raises SitesInvalid with a line for each problem, OSError."""
    try:
        return Sites.model_validate(read_toml(path.read_bytes().decode()))
    except ValidationError as error:
        raise SitesInvalid("\n".join(_problems(path, error))) from error
    except ValueError as error:
        raise SitesInvalid(f"{path}: not TOML: {error}") from error


def _problems(path: Path, error: ValidationError) -> list[str]:
    found, problems = [], error.errors(include_url=False)
    within = {problem["loc"][:-2] for problem in problems}  # of what an item of a list lacks
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in within:
            continue  # it has items, which are told themselves
        key = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        what = {"extra_forbidden": "unknown key", "missing": "missing"}.get(problem["type"], what)
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 3:  # of a site
            what += f"; what {{{{{problem['loc'][-1]}}}}} stands for goes into [site.values]"
        found.append(f"{path}: {key}: {what}" if key else f"{path}: {what}")
    return found
