"""What the client that goes past nats-py's queues asks of its connection."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import _SSLProtocolTransport
from types import SimpleNamespace

from broker.client import _waiting_bytes


def test_a_tls_link_that_has_just_gone_still_has_something_to_send() -> None:
    """Then what is pending is left to the client, which sends it once it is connected again."""
    loop = asyncio.new_event_loop()
    transport = _SSLProtocolTransport(loop, None)  # as asyncio leaves it when the link is lost
    transport._closed = True
    assert _waiting_bytes(SimpleNamespace(transport=transport)) > 0
    plain = SimpleNamespace(get_write_buffer_size=lambda: 7)
    assert _waiting_bytes(SimpleNamespace(transport=plain)) == 7
    loop.close()
