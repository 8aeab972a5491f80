"""What the client that goes past nats-py's queues asks of its connection."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import _SSLProtocolTransport
from types import SimpleNamespace

import nats.errors
import pytest

from broker.client import DirectClient, _waiting_bytes
from broker.server import BrokerServer
from tests.support.tap import tapped


def test_a_tls_link_that_has_just_gone_still_has_something_to_send() -> None:
    """Then what is pending is left to the client, which sends it once it is connected again."""
    loop = asyncio.new_event_loop()
    transport = _SSLProtocolTransport(loop, None)  # as asyncio leaves it when the link is lost
    transport._closed = True
    assert _waiting_bytes(SimpleNamespace(transport=transport)) > 0
    plain = SimpleNamespace(get_write_buffer_size=lambda: 7)
    assert _waiting_bytes(SimpleNamespace(transport=plain)) == 7
    loop.close()


async def test_an_answer_that_comes_when_nobody_waits_for_it_any_more_ends_nothing(
    broker: BrokerServer,
) -> None:
    """A connection that took too long is given up, and its flush with it."""
    async with tapped(broker.url, 0.2) as far:
        client = DirectClient()
        await client.connect(servers=[far.url], allow_reconnect=False)
        with pytest.raises(nats.errors.TimeoutError):
            await client.flush(0.1)
        heard = await client.subscribe("late")
        await client.publish("late", b"and heard")
        assert (await heard.next_msg(10)).data == b"and heard"
        await client.close()
