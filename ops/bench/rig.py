"""A run to be measured: broker, coordinators and sites as real processes here.

Unless another one is given the configuration is the demo's, but for a target that is never reached.
Sites' trainers are forked from a preloaded parent, as in the demo.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from broker import monitor
from broker.connection import connect
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.codec import Entry
from eventlog.config import RunConfig, Target
from eventlog.errors import AtollError
from eventlog.events import CoordinatorElected, Event
from eventlog.feed import Feed
from eventlog.log import EventLog
from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View
from ops import configure, founding
from ops.demo.processes import Crew, end_preload
from ops.demo.stage import CONFIG
from ops.home import Home
from sitehub import build, sources
from sitehub.founding import start
from sitehub.spawn import PRELOAD_VARIABLE, socket_folder, start_preload

# every 32nd file of the standard library: enough for blocks, soon built
OPTIONS = build.Options(subset=20)
PATIENCE_S = 120.0
E = TypeVar("E", bound=Event)
T = TypeVar("T")


class BenchFailed(AtollError):
    """What was to be measured did not happen; the text says what was waited for."""


@dataclass(slots=True)
class Rig:
    """`entries`: the log as it came, and `came` when, by our monotonic clock; `view`: its fold.
    `folder`: removed at the end with all that is in it."""

    folder: Path
    log: EventLog
    crew: Crew
    server: BrokerServer
    config: RunConfig
    data: Path
    feed: Feed
    projection: Projection
    entries: list[Entry] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    voids: set[int] = field(default_factory=set)

    @property
    def view(self) -> View:
        return View(self.projection.db)

    @property
    def last(self) -> int:
        """The newest sequence that has come."""
        return len(self.entries)

    def of(self, kind: type[E], source: str = "", after: int = 0) -> list[tuple[int, E]]:
        """(sequence, event) of the valid events of a type, of one source or all, behind one."""
        return [
            (number, entry.event)
            for number, entry in enumerate(self.entries[after:], start=after + 1)
            if isinstance(entry.event, kind)
            and source in ("", entry.record.subject)
            and number not in self.voids
        ]

    def at(self, sequence: int) -> float:
        """The clock of its source (time.time) when an event was written."""
        envelope = self.entries[sequence - 1].envelope
        return envelope.at if envelope is not None else 0.0

    async def until(
        self, holds: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S
    ) -> T:
        """Wait until `holds` says something true of the log. Raises BenchFailed, DemoFailed."""
        until = time.monotonic() + patience_s
        while not (found := holds()):
            if time.monotonic() > until:
                raise BenchFailed(f"waited {patience_s:g} s in vain for {what}")
            await self._fold_next()
        return found

    def coordinate(self, name: str) -> None:
        self.crew.start(name, ["coordinate", self.config.name])

    def site(self, name: str) -> None:
        data = ["--data", str(self.data), "--threads", "1"]
        self.crew.start(name, ["site", "run", self.config.name, name, *data])

    def kill_site(self, name: str) -> None:
        self.crew.kill_site(self.config.name, name)

    def leader(self) -> str | None:
        """Which of our processes holds the newest term; None while nobody has one."""
        claims = self.of(CoordinatorElected)
        holder = claims[-1][1].holder if claims else ""
        here = socket.gethostname()
        for name, process in self.crew.running.items():
            if holder == f"{here}-{process.pid}":
                return name
        return None

    def stand_by(self) -> bool:
        """Whether all coordinators that run have reached the broker: connected, they fold."""
        connections = json.loads(monitor.ask(f"{self.server.monitor_url}/connz", 5.0))
        names = {one.get("name") for one in connections["connections"]}
        pids = [
            process.pid
            for process in self.crew.running.values()
            if isinstance(process.args, list) and "coordinate" in process.args
        ]
        return all(f"coordinator-{pid}" in names for pid in pids)

    async def _fold_next(self) -> None:
        records = await self.feed.next(0.1)
        now = time.monotonic()
        for entry, voids in self.projection.apply(records):
            self.entries.append(entry)
            self.came.append(now)
            if voids[0]:
                self.voids.add(entry.record.sequence)
        self.crew.check()


def demo() -> RunConfig:
    """The demo's configuration for a run that does not end by itself."""
    config = configure.load(CONFIG)
    return config.model_copy(update={"name": "bench", "target": Target(rounds=1_000_000)})


@asynccontextmanager
async def rigged(
    config: RunConfig | None = None, options: build.Options = OPTIONS, threads: int = 1
) -> AsyncIterator[Rig]:
    """A run whose creation is folded, on a broker of its own; everything is gone afterwards.
    `options`: how its data is built from Python's standard library; `threads`: of a coordinator,
    those of trainers are always one."""
    config = config or demo()
    folder = Path(tempfile.mkdtemp(prefix="atoll-bench-"))
    sockets = socket_folder("atoll-bench-")
    async with AsyncExitStack() as stack:
        for path in (folder, sockets):
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        home = Home(folder)
        server = stack.enter_context(
            BrokerServer(ServerSettings(home.broker), die_with_parent=True)
        )
        preload_socket, data = sockets / "preload", folder / "data"
        preload, corpus = await asyncio.gather(
            asyncio.to_thread(start_preload, preload_socket, home.process_log("preload")),
            asyncio.to_thread(build.build, [sources.standard_library()], data, options),
        )
        stack.callback(end_preload, preload)
        environment = {
            PRELOAD_VARIABLE: str(preload_socket),
            "ATOLL_BROKER": server.url,
            "OMP_NUM_THREADS": str(threads),
            "TMPDIR": str(sockets),
        }
        crew = Crew(home, environment)
        stack.callback(crew.end)
        connection = await stack.enter_async_context(await connect(server.url, name="bench"))
        await founding.create(connection, *start(config, corpus), corpus)
        log = await JetStreamLog.open(connection, config.name)
        stack.push_async_callback(log.close)
        projection = stack.enter_context(Projection(":memory:", [LeaseTable()], config.name))
        feed = await stack.enter_async_context(Feed(log, 0))
        rig = Rig(folder, log, crew, server, config, data, feed, projection)
        await rig.until(rig.view.exists, "its creation")
        yield rig
