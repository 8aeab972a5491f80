"""Quantiles that cover what they say, whatever the waits are distributed like.

Split conformal prediction over the latest scores gives the quantile (Vovk et al. 2005; the rank is
ceil((n + 1) p), Lei et al. 2018), and each level is steered by what it covered so far (adaptive
conformal inference, Gibbs and Candès 2021: level += rate · (p − covered)), so that in the long run
a share p of the starts comes no later, though queues drift. A bound is judged as soon as it is
known: when the job starts, or when the bound has passed and it has not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil, inf

LEVELS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Scores:
    """The latest `window` scores, in order, and the steered levels."""

    def __init__(self, window: int = 400, rate: float = 0.02) -> None:
        self.window, self.rate = window, rate
        self.steered = list(LEVELS)
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._known: list[float] = []  # the quantiles, until something changes

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, score: float) -> None:
        """A score that has been observed; the oldest goes when there are too many."""
        self._known = []
        self._latest.append(score)
        insort(self._sorted, score)
        if len(self._latest) > self.window:
            self._sorted.pop(bisect_left(self._sorted, self._latest.popleft()))

    def judge(self, level: int, covered: bool) -> None:
        """The bound of LEVELS[level] held, or not: steer by it, within [0, 1]."""
        self._known = []
        moved = self.steered[level] + self.rate * (LEVELS[level] - covered)
        self.steered[level] = min(1.0, max(0.0, moved))

    def quantiles(self) -> list[float]:
        """The score at each level, rising; inf where there are too few scores for a level."""
        if self._known:
            return self._known
        num, highest, found = len(self._sorted), -inf, self._known
        for p in self.steered:
            rank = max(1, ceil((num + 1) * p - 1e-9))
            highest = max(highest, self._sorted[rank - 1] if rank <= num else inf)
            found.append(highest)
        return found
