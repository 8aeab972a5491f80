"""Fixtures: a real broker, and a connection that loses what a test wants lost."""

from collections.abc import AsyncIterator

import pytest

from broker.connection import Connection, connect
from broker.server import BrokerServer
from tests.support.broker import broker, connection, run_name
from tests.support.proxy import Proxy, proxied

__all__ = ["broker", "connection", "lossy", "proxy", "run_name"]


@pytest.fixture
async def proxy(broker: BrokerServer) -> AsyncIterator[Proxy]:
    async with proxied(broker.url) as opened:
        yield opened


@pytest.fixture
async def lossy(proxy: Proxy) -> AsyncIterator[Connection]:
    """A connection through the proxy."""
    async with await connect(proxy.url, name="lossy") as opened:
        yield opened
