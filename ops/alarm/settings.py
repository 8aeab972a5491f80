"""A coordinator's own settings, from a TOML file: where metrics are served, and who is alerted of
what. Nothing of it is in the log, and none of it changes what the run does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ops.configure import ConfigInvalid
from ops.toml import read_toml

Seconds = Annotated[float, Field(gt=0, le=1e7)]
_PLACE = re.compile(r"(?:(?P<host>[^\s:]+|\[[0-9a-fA-F:]+\]):)?(?P<port>\d{1,5})")
HOST = "127.0.0.1"  # where metrics are served unless somebody says otherwise: not to the world


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Alerts(Section):
    """What is worth waking somebody for, and how: with neither command nor webhook, nobody is."""

    command: tuple[str, ...] = ()  # a program and its arguments; the alert is JSON on its stdin
    webhook: str = ""  # http(s) URL that the alert's JSON is posted to
    stall_s: Seconds = 3600.0  # no new version for so long, though the run is running
    lost_site: bool = True  # a site departed as lost, unfit, or with a dead trainer
    broker_s: Seconds = 60.0  # the broker has not answered for so long
    # free space where this coordinator works, below which it will soon be full
    disk_free_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    # the newest version's loss above the lowest of any, nats a token; or it is no number at all
    divergence_nats: Annotated[float, Field(gt=0, le=100)] = 1.0
    repeat_s: Seconds = 86400.0  # what goes on is told again after so long

    @field_validator("webhook")
    @classmethod
    def _is_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("write http://HOST/PATH or https://HOST/PATH")
        return value

    @field_validator("command")
    @classmethod
    def _is_program(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0]:
            raise ValueError('the program is missing: write ["program", "argument"]')
        if any("\0" in one for one in value):
            raise ValueError("no program takes a NUL")
        return value

    @property
    def told(self) -> bool:
        """Whether anybody is to be told."""
        return bool(self.command or self.webhook)


class Settings(Section):
    """The whole file."""

    metrics: str = ""  # [HOST:]PORT of the endpoint; empty: none
    alerts: Alerts = Alerts()

    @field_validator("metrics")
    @classmethod
    def _is_place(cls, value: str) -> str:
        if value:
            place(value)
        return value


def place(text: str) -> tuple[str, int]:
    """(host, port) of [HOST:]PORT; port 0: a free one. Raises ValueError."""
    match = _PLACE.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("write [HOST:]PORT, such as 9464 or 0.0.0.0:9464")
    return (match["host"] or HOST).strip("[]"), int(match["port"])


def load(path: Path | None, metrics: str | None = None) -> Settings:
    """The settings in a file, the defaults without one; `metrics` takes the place of the file's.
    Raises ConfigInvalid, and OSError where the file cannot be read."""
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = read_toml(path.read_bytes().decode())
        except ValueError as error:
            raise ConfigInvalid(f"{path}: not TOML: {error}") from error
    if metrics is not None:
        tree["metrics"] = metrics
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigInvalid("\n".join(_problems(path, error))) from error


def _problems(path: Path | None, error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        what = "unknown key" if problem["type"] == "extra_forbidden" else what
        lines.append(f"{path or 'the settings'}: {key}: {what}")
    return lines
