"""Which alerts are due: a pure function of a reading, the settings and what fires already.

An alert fires when its cause is first read, is told again while it lasts, and is resolved when the
cause has gone. One that is about a site names it; each has a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ops.alarm.reading import BAD_ENDS, Reading, diverged
from ops.alarm.settings import Alerts
from ops.numbers import size
from outer.waiting import span


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that is wrong now: what, why it matters, what to do."""

    name: Literal["stall", "lost_site", "broker", "disk", "divergence", "mismatch"]
    what: str
    why: str
    todo: str
    site: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known from one reading to the next."""
        return (self.name, self.site)


@dataclass(frozen=True, slots=True)
class Alert:
    """What is sent: a cause that fires, or one that is over."""

    run: str
    status: Literal["firing", "resolved"]
    cause: Cause

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        cause = self.cause
        said: dict[str, Any] = {"alert": cause.name, "status": self.status, "run": self.run}
        said |= {"what": cause.what, "why": cause.why, "todo": cause.todo}
        return said | ({"site": cause.site} if cause.site else {})


@dataclass(frozen=True, slots=True)
class Firing:
    """A cause that was told, and when (seconds of the caller's clock)."""

    cause: Cause
    told: float


LOCAL = ("broker", "disk")  # of this process, whether it coordinates or not
Firings = dict[tuple[str, str], Firing]


def due(
    reading: Reading, settings: Alerts, firing: Firings, now: float
) -> tuple[list[Alert], Firings]:
    """The alerts to send now, and what fires from here on. Of the run only the coordinator tells:
    standbys, which read the same log, tell of their own disk and link alone."""
    found = {cause.key: cause for cause in causes(reading, settings)}
    alerts, after = [], {}
    for key, cause in found.items():
        before = firing.get(key)
        again = before is None or now - before.told >= settings.repeat_s
        if again:
            alerts.append(Alert(reading.run, "firing", cause))
        after[key] = Firing(cause, now if again or before is None else before.told)
    for key, one in firing.items():
        if key in found:
            continue
        if reading.around.leads or one.cause.name in LOCAL:
            alerts.append(Alert(reading.run, "resolved", one.cause))
        else:
            after[key] = one  # who does not coordinate does not know
    return alerts, after


def causes(reading: Reading, settings: Alerts) -> Iterator[Cause]:
    """Everything that is wrong in a reading."""
    away_s = reading.around.broker_away_s
    if away_s is not None and away_s >= settings.broker_s:
        yield Cause(
            "broker",
            f"the broker has not answered for {span(away_s)}",
            "sites train what they hold and then wait; nothing is merged",
            "see to the broker; all goes on by itself when it answers",
        )
    yield from _disk(reading, settings)
    if not reading.around.leads or reading.state == "finished":
        return
    yield from _stall(reading, settings)
    yield from _sites(reading, settings)
    if diverged(reading.loss, reading.lowest_loss, settings.divergence_nats):
        yield Cause(
            "divergence",
            f"version {reading.version} has a loss of {reading.loss:.4g}; "
            f"the lowest was {_number(reading.lowest_loss)}",
            "the model gets worse: what is merged now may have to be thrown away",
            f"atoll run pause {reading.run}; look at rates and data; fork from an earlier version",
        )


def _disk(reading: Reading, settings: Alerts) -> Iterator[Cause]:
    disk = reading.around.disk
    if disk is None or not disk.size_bytes:
        return
    if disk.free_bytes < settings.disk_free_share * disk.size_bytes:
        yield Cause(
            "disk",
            f"{size(disk.free_bytes)} of {size(disk.size_bytes)} are free at {disk.path}",
            "a full disk stops the coordinator before its next version",
            "make room there, or move ATOLL_HOME",
        )


def _stall(reading: Reading, settings: Alerts) -> Iterator[Cause]:
    age_s = reading.around.version_age_s
    if reading.state == "running" and age_s >= settings.stall_s:
        first = reading.waits[0] if reading.waits else "nobody says what it waits for"
        yield Cause(
            "stall",
            f"no new version for {span(age_s)}: {first}",
            "the run does not advance",
            f"atoll watch {reading.run} says who waits for what",
        )


def _sites(reading: Reading, settings: Alerts) -> Iterator[Cause]:
    for site in reading.sites:
        if settings.lost_site and site.code in BAD_ENDS:
            yield Cause(
                "lost_site",
                f"{site.site} departed ({site.code}): {site.reason}",
                "its blocks were given to others; the run goes on without it",
                f"look at its job, and start it again: atoll site run {reading.run} {site.site}",
                site.site,
            )
        if site.mismatches:
            yield Cause(
                "mismatch",
                f"{site.site} computed another version {reading.version} than the committed one",
                "its arithmetic or memory is faulty; twice in a row, and it is departed",
                "drain it and check the machine",
                site.site,
            )


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
