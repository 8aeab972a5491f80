"""How fast chunks go: a cap on bytes per second, and how many are on their way at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SOON_S = 2.0  # a chunk that took no longer leaves room for one more beside it
LATE_S = 8.0  # behind much more than that on one link, not even a ping comes through in time


class Pace:
    """A token bucket without a store of tokens: whoever wants to move bytes waits until they are
    paid for, so that no stretch of time sees more than `bytes_per_s`. One for all transfers of a
    process, in both directions."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a cap of {bytes_per_s} bytes/s would let nothing through")
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._paid_until = 0.0

    def delay_s(self, num_bytes: int) -> float:
        """Book so many bytes; how long to wait before they may move."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + num_bytes / self.bytes_per_s
        return self._paid_until - now


class Window:
    """At most `size` chunks on the way, and `size` fits itself to the link: one more for each that
    was answered soon, half as many when one was late, lost or refused. So a fast link is filled
    within a few round trips, and a slow or busy one is not buried under what it cannot carry."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.size = most, min(2, most)
        self.num_busy = 0
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place among those on the way, waited for."""
        while self.num_busy >= self.size:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.num_busy += 1
        try:
            yield
        finally:
            self.num_busy -= 1
            self._wake()

    def answered(self, took_s: float) -> None:
        """A chunk arrived after so long."""
        if took_s > LATE_S:
            self.shrink()
        elif took_s < SOON_S:
            self.size = min(self.most, self.size + 1)
            self._wake()

    def shrink(self) -> None:
        """A chunk was late, lost, or refused because the store is busy."""
        self.size = max(1, self.size // 2)

    def _wake(self) -> None:
        free = self.size - self.num_busy
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
