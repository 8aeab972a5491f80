"""The contract of logs, held by JetStream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.api import ask
from broker.connection import Connection
from broker.jetstream_log import JetStreamLog
from broker.streams import log_stream
from eventlog.log import EventLog
from tests.contract.log_contract import RUN, LogContract, NewLog


class TestJetStreamLog(LogContract):
    @pytest.fixture
    async def new_log(self, connection: Connection) -> AsyncIterator[NewLog]:
        opened: list[JetStreamLog] = []

        async def make() -> EventLog:
            opened.append(await JetStreamLog.create(connection, RUN))
            return opened[-1]

        yield make
        for log in opened:
            await log.close()
        await ask(connection.control, f"STREAM.DELETE.{log_stream(RUN)}")
