"""Holders of unstarted blocks in the order in which they may end, for `leases.stealing`.

Each has a bound: it ends no later. The bounds change with its own rows, and with the ticks for who
shows no progress; so they are counted anew for all once a tick, and for who was written about in
between. The number of live sites enters by the heartbeat's interval, in steps of 50 sites.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from eventlog.config import Timing
from leases.agenda import Agenda, of
from leases.standing import Standing
from leases.view import View

Rank = tuple[float, str, int]  # seconds (below zero where the largest comes first), site, seq
_SITES = 50  # a step of the number of live sites; a heartbeat's interval grows by 1 s in it


def surely_stalled_s(stalled_ticks: int, timing: Timing, num_live: int) -> float:
    """Seconds without a step for sure: the last one may be as young as the first of the ticks, and
    the next heartbeat not yet due."""
    return max(0.0, (stalled_ticks - 1) * timing.tick_s - timing.heartbeat_s(num_live))


def block_s(view: View, one: Standing) -> float | None:
    """Seconds that it needs for a block, where its rate is known."""
    rate = one.tokens_per_s
    return view.index().block_tokens / rate if rate else None


@dataclass(slots=True)
class Heap:
    """Ranks by their smallest; one that was given up is skipped when it comes to the head."""

    of: dict[int, Rank] = field(default_factory=dict)
    _heap: list[Rank] = field(default_factory=list)

    def set(self, rank: Rank) -> None:
        """Put an incarnation, or move it."""
        if self.of.get(rank[2]) != rank:
            self.of[rank[2]] = rank
            heapq.heappush(self._heap, rank)
        if len(self._heap) > 2 * len(self.of) + 64:
            self._heap = sorted(self.of.values())

    def head(self) -> Rank | None:
        """The smallest rank."""
        while self._heap and self.of.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def copy(self) -> list[Rank]:
        """A heap of the ranks, and of some that were given up; the caller's to change."""
        return list(self._heap)

    def clear(self) -> None:
        self.of.clear()
        self._heap.clear()


@dataclass(slots=True)
class Slowest:
    """Up to date when `slowest` has returned it. holders: by the bound, below zero; timed: idle
    sites by the seconds they need for a block; untimed: those whose rate is not known."""

    holders: Heap = field(default_factory=Heap)
    timed: Heap = field(default_factory=Heap)
    untimed: Heap = field(default_factory=Heap)
    _looked: tuple[object, ...] = ()

    def refresh(self, view: View, agenda: Agenda) -> None:
        """Take in what changed since the last time."""
        run, timing = view.run(), view.timing()
        step, silent = run.live // _SITES, timing.lost_ticks(run.live) // 2
        changed = agenda.changed
        looked = (agenda.num_changes, run.term_ticks, step, silent)
        if looked != self._looked:
            self._looked = looked
            for heap in (self.holders, self.timed, self.untimed):
                heap.clear()
            changed = agenda.holders | agenda.idle
        for seq in changed:
            if seq in agenda.holders:
                one = agenda.standings[seq]
                bound = _bound(view, one, run.term_ticks, step, silent)
                self.holders.set((-bound, one.site, seq))
            else:
                self.holders.of.pop(seq, None)
            self.timed.of.pop(seq, None)
            self.untimed.of.pop(seq, None)
            if seq in agenda.idle:
                one = agenda.standings[seq]
                needs_s = block_s(view, one)
                heap = self.untimed if needs_s is None else self.timed
                heap.set((needs_s or 1.0, one.site, seq))
        agenda.changed.clear()

    def may_shorten(self, tick_s: float) -> bool:
        """Whether some idle site may train a block sooner than its holder."""
        last, first = self.holders.head(), self.timed.head()
        soonest_s = 0.0 if self.untimed.head() else first[0] if first else math.inf
        return last is not None and -last[0] > soonest_s + tick_s


def slowest(view: View) -> Slowest:
    """The order as it is now."""
    agenda = of(view)
    if agenda.slowest is None:
        agenda.slowest = Slowest()
    agenda.slowest.refresh(view, agenda)
    return agenda.slowest


def _bound(view: View, one: Standing, now: int, step: int, silent: int) -> float:
    """It ends all that it holds in no more than so many seconds."""
    timing = view.timing()
    if now - one.last_tick > silent:
        return math.inf
    stalled_ticks = now - one.progress_tick
    stalled_s = surely_stalled_s(stalled_ticks, timing, step * _SITES) if one.training else 0.0
    return (one.training + one.leased) * max(block_s(view, one) or 0.0, stalled_s)
