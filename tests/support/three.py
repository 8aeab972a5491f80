"""Three servers of one broker as a test hurts them: always the one that leads a run's log."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from broker.api import stream_info
from broker.connection import Connection
from broker.errors import ApiError, LinkDown
from broker.server import BrokerServer
from broker.streams import log_stream
from tests.support.secured import Cluster

_WHOLE_S = 120.0


async def leader(connection: Connection, run: str) -> str:
    """The server that leads the stream of a run's events."""
    info = await stream_info(connection.control, log_stream(run))
    return str(info["cluster"].get("leader", ""))


async def caught_up(connection: Connection, run: str) -> None:
    """Both other servers hold what the leaders do, of both streams of a run."""
    async with asyncio.timeout(_WHOLE_S):
        for name in (log_stream(run), f"{log_stream(run)}_BLOBS"):
            while not await _is_whole(connection, name):
                await asyncio.sleep(0.2)


async def _is_whole(connection: Connection, stream: str) -> bool:
    try:
        info = await stream_info(connection.control, stream)
    except (ApiError, LinkDown):
        return False
    replicas = info.get("cluster", {}).get("replicas", [])
    return len(replicas) == 2 and all(one.get("current") for one in replicas)


class Leading:
    """In the place of a single broker: `pid`, `kill` and `start` are those of the server that led
    when `whole` was waited for last. A start does not wait for the server to be ready, since the
    others serve meanwhile."""

    def __init__(self, cluster: Cluster, connection: Connection, run: str) -> None:
        self._cluster, self._connection, self._run = cluster, connection, run
        self._worker = ThreadPoolExecutor(1)  # servers end with the thread that started them
        self._starting: Future[None] | None = None
        self.name = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, cluster: Cluster, run: str) -> AsyncIterator[Leading]:
        async with await cluster.connect("operator") as connection:
            made = cls(cluster, connection, run)
            try:
                yield made
            finally:
                made._worker.shutdown()

    async def whole(self) -> None:
        """Wait until nobody is missing: before that no other may be hurt (docs/deploy.md)."""
        if self._starting is not None:
            await asyncio.wrap_future(self._starting)
        await caught_up(self._connection, self._run)
        self.name = await leader(self._connection, self._run)

    @property
    def server(self) -> BrokerServer:
        return self._cluster.servers[self.name]

    @property
    def pid(self) -> int:
        return self.server.pid

    def kill(self) -> None:
        self.server.kill()

    def empty(self) -> None:
        """The machine of a killed server has lost everything but the server's configuration."""
        node: Path = self._cluster.deployment.node(self.name)
        shutil.rmtree(node / "store")

    def start(self) -> None:
        self._starting = self._worker.submit(self.server.start)
