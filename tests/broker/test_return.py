"""A link that broke is tried for ever, at most so long apart as its run's lease allows; one whose
other side hangs counts as broken within the lease, one on which something still comes does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker.client import Message, Outgoing
from broker.connection import connect
from broker.errors import LinkDown
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


async def test_a_broker_that_hangs_is_left_within_the_lease(broker: BrokerServer) -> None:
    async with await connect(broker.url, name="tests") as connection:
        connection.retry_within(2.0)  # of a lease of 8 s
        for num in (1, 2):  # the link that comes back pings as often
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(10):  # some 3 s; with the usual pings 20 s at least
                    while connection.num_breaks < num:
                        await asyncio.sleep(0.05)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            async with asyncio.timeout(30):
                while not connection.connected:
                    await asyncio.sleep(0.05)
            assert connection.num_breaks == num


@pytest.mark.parametrize("bulk", [False, True], ids=["control", "bulk"])
async def test_a_large_answer_over_a_slow_link_is_no_silence(
    broker: BrokerServer, bulk: bool
) -> None:
    """The answers to pings stand behind it for longer than anybody waits for them."""
    answer = os.urandom(900_000)
    async with (
        await connect(broker.url, name="answers") as near,
        _slowed(broker.url, 150_000) as url,
        await connect(url, name="asks") as far,
    ):
        session = await near.control.session(1.0)

        def give(message: Message) -> None:
            replies.append(asyncio.ensure_future(session.publish(Outgoing(message.reply, answer))))

        replies = list[asyncio.Future[None]]()
        there = await session.listen(give)
        with pytest.raises(LinkDown):  # by then the broker knows that somebody listens
            await near.control.request(Outgoing("nobody"))
        link = far.bulk(0) if bulk else far.control
        await link.session(10.0)
        link.ping_every(1.0)
        got = await link.request(Outgoing(f"{there.inbox}.x"), timeout_s=60.0)
        assert got.data == answer
        assert link.num_breaks == 0
        await asyncio.gather(*replies)


@contextlib.asynccontextmanager
async def _slowed(url: str, bytes_per_s: int) -> AsyncIterator[str]:
    """The URL of a relay that passes on what a broker says at this rate, and no faster."""
    place, piece = urlsplit(url), bytes_per_s // 20

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: float) -> None:
        while data := await reader.read(piece):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(rest)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(place.hostname, place.port)
        pumps = pump(reader, far_writer, 0.0), pump(far_reader, writer, 0.05)
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the test
            await asyncio.gather(*pumps, return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"nats://{host}:{port}"
