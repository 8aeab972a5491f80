"""The connection: found wanting at once, healed by itself later."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from broker.client import Outgoing
from broker.connection import Connection, connect
from broker.credentials import Credentials
from broker.errors import BrokerUnfit, BrokerUnreachable, LinkDown, Refused
from broker.server import BrokerServer
from broker.session import Session
from broker.settings import ServerSettings
from broker.urls import servers
from eventlog.keys import Key
from tests.support.proxy import proxied


async def test_no_broker_at_the_url_is_said_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=f"nats://127.0.0.1:{port}") as caught:
        await connect(f"nats://127.0.0.1:{port}", name="tests")
    assert time.monotonic() - start < 5
    assert "\n" not in str(caught.value)


async def test_somebody_who_accepts_and_says_nothing_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        start = time.monotonic()
        with pytest.raises(BrokerUnreachable):
            await connect(f"nats://127.0.0.1:{mute.getsockname()[1]}", name="tests")
        assert time.monotonic() - start < 6


async def test_a_broker_that_takes_only_small_messages_is_refused(tmp_path: Path) -> None:
    with (
        BrokerServer(ServerSettings(tmp_path, max_payload_bytes=1 << 20)) as server,
        pytest.raises(BrokerUnfit, match="max_payload"),
    ):
        await connect(server.url, name="tests")


async def test_a_break_is_counted_and_healed(broker: BrokerServer) -> None:
    async with proxied(broker.url) as proxy, await connect(proxy.url, name="tests") as connection:
        assert (connection.connected, connection.num_breaks) == (True, 0)
        proxy.cut()
        async with asyncio.timeout(10):
            while connection.num_breaks == 0:
                await asyncio.sleep(0.01)
            await connection.control.session(10)
        assert (connection.connected, connection.num_breaks) == (True, 1)


async def test_a_request_in_flight_at_a_break_fails_at_once(broker: BrokerServer) -> None:
    async with proxied(broker.url) as proxy, await connect(proxy.url, name="tests") as connection:
        proxy.watch, proxy.num_losses = b"$JS.API.INFO", 1
        start = time.monotonic()
        with pytest.raises(LinkDown):
            await connection.control.request(Outgoing("$JS.API.INFO"), timeout_s=30)
        assert time.monotonic() - start < 5
        assert (await connection.control.request(Outgoing("$JS.API.INFO"), timeout_s=10)).data


async def test_a_closed_connection_leaves_no_task_behind(broker: BrokerServer) -> None:
    before = asyncio.all_tasks()
    connection = await connect(broker.url, name="tests")
    await connection.bulk(0).session(5)
    await connection.close()
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before
    with pytest.raises(LinkDown):
        await connection.control.session(0.1)


async def test_closing_ends_a_reconnect_that_swallows_its_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `asyncio.wait_for` does before Python 3.12, and the client calls it: when the inner
    call fails at the moment of the cancellation, its error comes out and the cancellation is lost.
    """
    trying = asyncio.Event()

    async def swallow(self: Client, *args: object, **kwargs: object) -> None:
        trying.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionRefusedError("refused") from None

    server = BrokerServer(ServerSettings(tmp_path), die_with_parent=True)
    server.start()
    connection = await connect(server.url, name="tests")
    monkeypatch.setattr(Client, "connect", swallow)
    server.kill()
    async with asyncio.timeout(10):
        await trying.wait()
    closing = asyncio.ensure_future(connection.close())
    done, _ = await asyncio.wait({closing}, timeout=5)
    monkeypatch.undo()
    assert done, "close hangs"


async def test_a_client_that_fails_while_it_closes_leaves_no_error_and_no_task(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with the real client on a reset socket: its read loop ended with the error of its own
    closing, which nobody awaited, and its subscriptions' tasks stayed."""
    left: list[str] = []

    def note(_: object, context: dict[str, Any]) -> None:
        left.append(str(context))

    async def fail(self: Client, status: int, do_cbs: bool = True) -> None:
        self._status = Client.CLOSED
        raise ConnectionResetError("reset")

    asyncio.get_running_loop().set_exception_handler(note)
    before = asyncio.all_tasks()
    async with proxied(broker.url) as proxy, await connect(proxy.url, name="tests") as connection:
        session = await connection.control.session(5)
        await session.listen(lambda message: None)
        monkeypatch.setattr(Client, "_close", fail)
        proxy.cut()
        async with asyncio.timeout(10):
            while connection.num_breaks == 0 or not connection.connected:
                await asyncio.sleep(0.02)
        monkeypatch.undo()
        del session
    await asyncio.sleep(0.1)
    gc.collect()
    assert left == []
    assert [task for task in asyncio.all_tasks() - before if "relay" not in repr(task)] == []


async def test_a_session_closes_though_its_socket_closed_by_itself(broker: BrokerServer) -> None:
    """Once all that was left to write is written, the socket is gone and cannot be cut."""
    session = await Session.open([broker.url], "tests", 5.0)
    writer: Any = session._client._transport._io_writer  # type: ignore[union-attr]
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer.write(b"PUB nobody 3145728\r\n" + bytes(3 << 20) + b"\r\n")
    assert writer.transport.get_write_buffer_size(), "all went out at once"
    await session.close()
    assert writer.transport.is_closing() and not writer.transport.get_write_buffer_size()


@pytest.mark.parametrize(
    ("role", "subject"), [("site", "site.alpha"), ("coordinator", "coordinator"), ("auditor", None)]
)
async def test_credentials_are_held_against_what_they_are_to_write(
    role: str, subject: str | None
) -> None:
    known = Credentials(role, "alpha", "nats://127.0.0.1:1", Key.generate().seed)
    connection = Connection(servers(known.urls), "tests", known)
    if subject is not None:
        connection.check_writer(subject)
    for other in {"site.alpha", "site.beta", "coordinator", "operator"} - {subject}:
        with pytest.raises(Refused, match=f"of {role} alpha, who may not write as {other}"):
            connection.check_writer(other)
    Connection(servers(known.urls), "tests").check_writer("site.beta")  # a broker without users
