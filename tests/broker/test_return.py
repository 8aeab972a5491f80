"""A link that broke is tried for ever, at most so long apart as its run's lease allows."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

from broker.connection import connect
from broker.link import CONNECT_S
from broker.server import BrokerServer
from broker.settings import ServerSettings

RETRY_S = 0.5


async def test_tries_are_no_further_apart_than_asked_and_never_end(tmp_path: Path) -> None:
    with BrokerServer(ServerSettings(tmp_path / "store"), die_with_parent=True) as server:
        async with await connect(server.url, name="tests") as connection:
            connection.retry_within(RETRY_S)
            port, tried = int(server.url.rpartition(":")[2]), list[float]()
            server.kill()

            async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tried.append(time.monotonic())
                writer.close()

            listener = await asyncio.start_server(refuse, "127.0.0.1", port)
            async with asyncio.timeout(60):
                while len(tried) < 12:
                    await asyncio.sleep(0.05)
            listener.close()
            await listener.wait_closed()
            apart = [after - before for before, after in pairwise(tried)]
            assert max(apart) < RETRY_S + CONNECT_S, "a pause, and the try before it"
            server.start()
            async with asyncio.timeout(30):
                while not connection.connected:
                    await asyncio.sleep(0.05)
            assert connection.num_breaks == 1
