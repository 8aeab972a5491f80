"""Whether the broker answers, as a person wants to hear it: that it is gone, that it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from outer.waiting import span

GRACE_S = 1.0  # a break that heals sooner is nobody's concern


@dataclass(slots=True)
class LinkWatch:
    """`connected`: asked at each look whether the link stands. `away_s`: for how long the broker
    had been away at the last look; None while it answers."""

    connected: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    away_s: float | None = None
    _since: float | None = field(default=None, init=False)

    def look(self) -> str:
        """What is to be said now, once each: that it is gone, that it is back; else ''."""
        now, said = self.clock(), self.away_s is not None
        if self.connected():
            since, self._since, self.away_s = self._since, None, None
            if said and since is not None:
                return f"the broker answers again, after {span(now - since)}"
            return ""
        self._since = now if self._since is None else self._since
        if now - self._since < GRACE_S:
            return ""
        self.away_s = now - self._since
        return "" if said else "the broker does not answer; trying again until it does"
