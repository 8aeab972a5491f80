"""How long a trainer stood still, measured where it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eventlog import phases


class Stall:
    """Seconds of one thread since they were asked for last: `blocked`, in work that is no training
    and was not done beside it; `idle`, without a command; `evaluate`, for an evaluation."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(phases.STALL, 0.0)
        self._kind, self._since = "", 0.0

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Standing still from here; within another one, that one counts."""
        if self._kind:
            yield
            return
        self._kind, self._since = kind, self._clock()
        try:
            yield
        finally:
            self._count()
            self._kind = ""

    def take(self) -> dict[str, float]:
        """Each kind, until now; counted anew from here."""
        if self._kind:
            self._count()
        found = self._seconds
        self._seconds = dict.fromkeys(phases.STALL, 0.0)
        return found

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._kind] += now - self._since
        self._since = now
