"""The log of a run whose agents asked for jobs: forecasts, waits and ends as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventlog.events import (
    Event,
    JobEnded,
    JobIntended,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementProbed,
)
from eventlog.export import write_export
from eventlog.writer import Stamp
from tests.support.scenario import RUN, Scenario, finish

START = 1_764_432_000  # 2025-11-29T16:00:00 UTC
SHAPE = JobShape(nodes=2, walltime_s=7200)
SAID_S = 1800  # what each probe says
Told = tuple[int, str, Event]  # seconds after the first record, agent, event


def job(
    site: str, number: int, at: int, wait_s: int | None, outcome: str = "walltime"
) -> list[Told]:
    """What an agent writes of one job, asked for at `at`; wait_s None: it never started."""
    name, job_id = f"{site}-{number}", str(number + 1)
    start, expected = START + at, START + at + SAID_S
    probe = PlacementProbed(
        shape=SHAPE, outcome="estimated", start_epoch_s=expected, asked_epoch_s=start
    )
    intent = JobIntended(
        job_name=name, shape=SHAPE, reason="it helps", at_epoch_s=start,
        expected_start_epoch_s=expected, index=number,
    )  # fmt: skip
    told: list[Told] = [
        (at, site, probe),
        (at + 1, site, intent),
        (at + 2, site, JobSubmitted(job_name=name, job_id=job_id)),
    ]
    if wait_s is None:
        return told
    seen = JobObserved(
        job_name=name, job_id=job_id, phase="running", nodes=2, walltime_s=7200,
        started_epoch_s=start + wait_s,
    )  # fmt: skip
    end = at + wait_s + (7200 if outcome == "walltime" else 60)
    ended = JobEnded.model_validate(
        {"job_name": name, "job_id": job_id, "outcome": outcome, "ended_epoch_s": START + end}
    )
    return [*told, (at + wait_s + 5, site, seen), (end, site, ended)]


def log_of(told: Iterable[Told], folder: Path) -> Path:
    """The events of agents in the order of their times, exported."""
    made, times = Scenario(), [0, 0]
    for at, site, event in sorted(told, key=lambda one: one[:2]):
        assert made.append(f"agent.{site}", [event], Stamp()) == [""]
        times.append(at)
    records = finish(made.log.read(0, limit=100_000))
    placed = [
        replace(one, time_ns=(START + at) * 10**9) for one, at in zip(records, times, strict=True)
    ]

    async def feed() -> Any:
        yield placed

    asyncio.run(write_export(RUN, feed(), folder / "queued.atoll"))
    return folder / "queued.atoll"
