"""The demo's own steps; the demo as a whole is played by `make demo`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from eventlog.log import EventLog
from eventlog.memory_log import MemoryLog
from ops.demo.processes import Crew, DemoFailed
from ops.demo.stage import play_story
from ops.home import Home


async def test_the_view_is_closed_before_a_failure_is_told(tmp_path: Path) -> None:
    closed: list[str] = []

    async def watch(log: EventLog) -> AsyncGenerator[None, None]:
        try:
            while True:
                yield
        finally:
            closed.append(log.run)

    crew = Crew(Home(tmp_path), {})
    crew.start("alpha", ["no-such-command"])
    with pytest.raises(DemoFailed, match="alpha ended with code 2"):
        await play_story(MemoryLog("demo"), crew, tmp_path, watch, print)
    assert closed == ["demo"]
    crew.end()
