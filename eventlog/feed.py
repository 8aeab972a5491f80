"""A log's follower as something one can wait for with a time limit.

`EventLog.follow` waits for ever; coordinator and hub also wait for their own clocks and work. A
`Feed` runs the follower in a task of its own with a bounded queue, and hands its failure on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from eventlog.chain import Record
from eventlog.log import EventLog

QUEUED_BATCHES = 64


class Feed:
    """Records after a position, batch by batch. Use as an async context manager."""

    def __init__(
        self, log: EventLog, after: int, subjects: Sequence[str] | None = None
    ) -> None:
        self._log, self._after, self._subjects = log, after, subjects
        self._queue: asyncio.Queue[list[Record]] = asyncio.Queue(QUEUED_BATCHES)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Feed:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def next(self, timeout_s: float | None) -> list[Record]:
        """The next batch; empty when none came in time. Raises what ended the follower."""
        assert self._task is not None, "the feed is not open"
        if self._queue.empty():
            getter = asyncio.ensure_future(self._queue.get())
            try:
                await asyncio.wait(
                    {getter, self._task},
                    timeout=timeout_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            except asyncio.CancelledError:
                getter.cancel()
                raise
            if getter.done():
                return getter.result()
            getter.cancel()
            if self._task.done():
                self._task.result()
                raise asyncio.CancelledError("the log was closed")
            return []
        return self._queue.get_nowait()

    async def _run(self) -> None:
        async for batch in self._log.follow(self._after, subjects=self._subjects):
            await self._queue.put(batch)
