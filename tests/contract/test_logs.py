"""The contract of logs, held by those that need no broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventlog.file_log import FileLog
from eventlog.log import EventLog
from eventlog.memory_log import MemoryLog
from tests.contract.log_contract import RUN, LogContract, NewLog


class TestMemoryLog(LogContract):
    @pytest.fixture
    async def new_log(self) -> AsyncIterator[NewLog]:
        opened: list[MemoryLog] = []

        async def make() -> EventLog:
            opened.append(MemoryLog(RUN))
            return opened[-1]

        yield make
        for log in opened:
            await log.close()


class TestFileLog(LogContract):
    @pytest.fixture
    async def new_log(self, tmp_path: Path) -> AsyncIterator[NewLog]:
        opened: list[FileLog] = []

        async def make() -> EventLog:
            opened.append(FileLog.create(tmp_path / f"{len(opened)}.log", RUN))
            return opened[-1]

        yield make
        for log in opened:
            await log.close()
