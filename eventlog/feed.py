"""A log's follower as something one can wait for with a time limit.

`EventLog.follow` waits for ever; coordinator and hub also wait for their own clocks and work. A
`Feed` runs the follower in a task of its own, bounded, and hands its failure on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from eventlog.chain import Record
from eventlog.log import EventLog

MAX_QUEUED_BATCHES = 64


class Feed:
    """Records after a position, batch by batch. Use as an async context manager."""

    def __init__(self, log: EventLog, after: int, subjects: Sequence[str] | None = None) -> None:
        self._log, self._after, self._subjects = log, after, subjects
        self._batches: deque[list[Record]] = deque()
        self._room = asyncio.Semaphore(MAX_QUEUED_BATCHES)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Feed:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def notify(self) -> None:
        """Let a waiting `next` return early, with nothing if nothing came: own work is done."""
        self._news.set()

    async def next(self, timeout_s: float | None) -> list[Record]:
        """The next batch; empty when none came in time, or on `notify`. Nothing is lost when the
        caller is cancelled. Raises what ended the follower."""
        if not self._batches:
            await asyncio.sleep(0)  # what has come is often one turn away; no timer for that
        if not self._batches:
            with suppress(TimeoutError):  # (wait_for loses a cancellation that comes with news)
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        self._news.clear()
        if self._batches:
            self._room.release()
            return self._batches.popleft()
        if self._task is not None and self._task.done():
            self._task.result()
            raise RuntimeError("the log was closed while it was being followed")
        return []

    async def _run(self) -> None:
        async for batch in self._log.follow(self._after, subjects=self._subjects):
            await self._room.acquire()
            self._batches.append(batch)
            self._news.set()
