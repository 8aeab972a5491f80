"""A real agent in this process, on a real Slurm, by a log in memory; the test is the planner."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from eventlog.codec import decode
from eventlog.events import OPERATOR, PLANNER, Event, PlacementPlanned, RunStopped
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection, run_projection
from eventlog.writer import Stamp, Writer
from leases.jobs import Job, jobs
from leases.table import LeaseTable
from leases.view import View
from ops.home import Home
from ops.placement.agent import Agent
from ops.placement.planner import Planner
from ops.placement.serve import serving
from ops.placement.sites import load
from tests.support.history import RUN, config, created

E = TypeVar("E", bound=Event)
F = TypeVar("F")
_numbers = itertools.count(1)
SMALL, LARGE = (1, 600), (2, 1800)


@dataclass
class Acting:
    """One run, one agent at a time. `said`: what it told a person."""

    root: Path
    sites: Path
    site: str
    log: MemoryLog = field(default_factory=lambda: MemoryLog(RUN))
    said: list[str] = field(default_factory=list)
    agent: Agent | None = None
    work: asyncio.Task[str] | None = None
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def begin(self) -> None:
        """The run exists, and the agent serves."""
        await self._write(OPERATOR, created(config()))
        await self.start()

    async def start(self, *, is_dry: bool = False) -> None:
        """An agent starts, knowing what its home and the log know."""
        served = serving(
            self.log,
            Home(self.root),
            load(self.sites),
            self.site,
            self.sites.parent,
            self.said.append,
            is_dry=is_dry,
        )
        self.agent = await self._stack.enter_async_context(served)
        self.work = asyncio.create_task(self.agent.run())

    async def kill(self) -> None:
        """It stops where it stands, in the middle of whatever it does."""
        assert self.work is not None
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()

    async def plan(self, *actions: dict[str, Any]) -> None:
        """What the planner says from now on."""
        full = tuple({"site": self.site, "reason": "a test", **one} for one in actions)
        await self._write(PLANNER, PlacementPlanned(actions=full, estimates=(), reason="a test"))

    async def stop_run(self) -> None:
        await self._write(OPERATOR, RunStopped(reason="enough"))

    async def _write(self, subject: str, event: Event) -> None:
        with await self._folded() as projection:
            pen = Writer(self.log, subject)
            pen.set(*View(projection.db).pen(subject))
            await pen.append([event], Stamp())

    async def _folded(self) -> Projection:
        projection = Projection(":memory:", [LeaseTable()], RUN)
        await run_projection(projection, self.log)
        return projection

    async def decision(self) -> list[dict[str, Any]]:
        """What the real planner would have agents do, as the log stands."""
        with Projection(":memory:", [LeaseTable()], RUN) as projection:
            planner = Planner(self.log, projection, load(self.sites), "a test")
            return await planner.look()

    async def jobs(self) -> list[Job]:
        """As the log tells them."""
        with await self._folded() as projection:
            return jobs(projection.db)

    async def job(self, name: str) -> Job:
        return next(job for job in await self.jobs() if job.name == name)

    async def events(self, kind: type[E]) -> list[E]:
        entries = [decode(record) for record in await self.log.read(0, limit=100_000)]
        return [one.event for one in entries if isinstance(one.event, kind)]

    async def until(
        self, holds: Callable[[list[Job]], object], what: str, within_s: float = 60.0
    ) -> list[Job]:
        """Wait until something holds of the jobs; fails after a bound, or when the agent ended."""
        return await self._until(self.jobs, holds, what, within_s)

    async def until_told(
        self,
        kind: type[E],
        holds: Callable[[list[E]], object] = bool,
        what: str = "",
        within_s: float = 90.0,
    ) -> list[E]:
        """The same of the events of one kind; by default: there is one."""
        return await self._until(lambda: self.events(kind), holds, what or kind.type, within_s)

    async def _until(
        self,
        ask: Callable[[], Awaitable[list[F]]],
        holds: Callable[[list[F]], object],
        what: str,
        within_s: float,
    ) -> list[F]:
        until = time.monotonic() + within_s
        while not holds(found := await ask()):
            assert time.monotonic() < until, f"waited in vain for {what}: {found} {self.said}"
            assert self.work is not None
            if self.work.done() and self.work.exception():
                raise self.work.exception() or AssertionError(what)
            await asyncio.sleep(0.1)
        return found


def submit(name: str, shape: tuple[int, int] = SMALL, **more: Any) -> dict[str, Any]:
    """An action: a job of that name."""
    return {"do": "submit", "job": name, "shape": shape, **more}


def job_names(number: int) -> list[str]:
    """Names that no other test has."""
    return [f"atoll-t-{next(_numbers)}-{time.monotonic_ns() % 10**9}" for _ in range(number)]
