"""A real broker for tests: one server for all of them, a run of its own for each.

A test package takes what it needs into its conftest: `from tests.support.broker import broker,
connection, run_name`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from broker.connection import Connection, connect
from broker.server import BrokerServer
from broker.settings import ServerSettings

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    """A nats-server that lives as long as the test session."""
    settings = ServerSettings(tmp_path_factory.mktemp("broker"))
    with BrokerServer(settings, die_with_parent=True) as server:
        yield server


@pytest.fixture
async def connection(broker: BrokerServer) -> AsyncIterator[Connection]:
    """A connection to the session's broker."""
    async with await connect(broker.url, name="tests") as opened:
        yield opened


@pytest.fixture
def run_name() -> str:
    """A name that no other test has."""
    return f"run-{os.getpid()}-{next(_numbers)}"
