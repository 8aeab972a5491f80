"""Spells of time, kept in bounded memory: what lies close together becomes one."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_SPELLS = 400  # of one site: more than a picture has room for
GAP_S = 0.5


@dataclass(slots=True)
class Spells:
    """(from, until) in seconds, in order, none overlapping. Where there are too many, gaps are
    closed that are shorter than `gap_s`, which doubles each time: fine strokes blur, none moves."""

    spells: list[tuple[float, float]] = field(default_factory=list)
    gap_s: float = GAP_S

    def add(self, since_s: float, until_s: float) -> None:
        """One spell more, which ends no earlier than those before."""
        self._join(since_s, until_s)
        while len(self.spells) > MAX_SPELLS:
            self.gap_s *= 2
            before, self.spells = self.spells, []
            for spell in before:
                self._join(*spell)

    def _join(self, since_s: float, until_s: float) -> None:
        if self.spells and since_s - self.spells[-1][1] <= self.gap_s:
            first, last = self.spells[-1]
            self.spells[-1] = (min(first, since_s), max(last, until_s))
        else:
            self.spells.append((since_s, until_s))
