"""A log as agents and the operator tell it, for tests of the planner."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from eventlog.codec import decode
from eventlog.events import (
    Event,
    JobIntended,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementPlanned,
    QueueObserved,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection, run_projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View
from ops.placement.planner import Planner
from ops.placement.sites import Sites
from tests.support.history import RUN

NOW = int(time.time())
SITE = """
[[site]]
name = "{}"
partition = "gpu"
speed = 0.0001
shapes = [{{nodes = 1, walltime = "1h"}}, {{nodes = 2, walltime = "2h"}}]
{}
"""
SHAPE = JobShape(nodes=2, walltime_s=7200, partition="gpu")
FREE = QueueObserved(
    partition="gpu",
    at_epoch_s=NOW,
    total_nodes=8,
    free_nodes=8,
    down_nodes=0,
    up=True,
    complete=True,
)


@dataclass
class Told:
    """A log, as agents and the operator tell it."""

    sites: Sites
    log: MemoryLog = field(default_factory=lambda: MemoryLog(RUN))

    async def say(self, subject: str, *events: Event, at: float = NOW) -> None:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            await run_projection(projection, self.log)
            pen = Writer(self.log, subject, clock=lambda: at)
            pen.set(*View(projection.db).pen(subject))
            await pen.append(list(events), Stamp())

    async def agent(self, *events: Event, site: str = "lumi", at: float = NOW) -> None:
        await self.say(f"agent.{site}", *events, at=at)

    async def actions(self, now: float = NOW) -> list[dict[str, Any]]:
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            planner = Planner(self.log, projection, self.sites, "test", clock=lambda: now)
            return await planner.look()

    async def does(self, now: float = NOW) -> list[tuple[str, Any]]:
        return [(one["do"], one.get("shape")) for one in await self.actions(now)]

    async def plans(self) -> list[PlacementPlanned]:
        entries = [decode(one).event for one in await self.log.read(0, limit=10_000)]
        return [one for one in entries if isinstance(one, PlacementPlanned)]


def intended(number: int, **more: Any) -> JobIntended:
    fields = {"job_name": f"j-{number}", "shape": SHAPE, "reason": "r", "at_epoch_s": NOW}
    return JobIntended.model_validate({**fields, **more})


def running(number: int, since: int = NOW) -> tuple[Event, ...]:
    return (
        JobSubmitted(job_name=f"j-{number}", job_id=str(number)),
        JobObserved(
            job_name=f"j-{number}",
            job_id=str(number),
            phase="running",
            nodes=2,
            walltime_s=7200,
            started_epoch_s=since,
            end_by_epoch_s=since + 7200,
        ),
    )
