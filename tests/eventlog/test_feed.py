"""A feed hands on what it gets, and never keeps its caller from ending."""

from __future__ import annotations

import asyncio

import pytest

from eventlog.events import COORDINATOR
from eventlog.feed import Feed
from eventlog.memory_log import MemoryLog
from tests.contract.events import tick


@pytest.mark.parametrize("num_steps", range(5))
async def test_a_cancellation_that_comes_with_news_is_not_lost(num_steps: int) -> None:
    log = MemoryLog("tests")
    async with Feed(log, 0) as feed:
        waiting = asyncio.create_task(feed.next(60.0))
        await asyncio.sleep(0)
        feed.notify()
        for _ in range(num_steps):  # how far the news have come within the waiting task
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert await waiting == []


async def test_a_feed_waits_no_longer_than_it_is_told_and_loses_nothing() -> None:
    log = MemoryLog("tests")
    async with Feed(log, 0) as feed:
        assert await feed.next(0.01) == []
        await log.append(COORDINATOR, [tick(1)], 0)
        assert [record.sequence for record in await feed.next(5.0)] == [1]
        assert await feed.next(0.01) == []
