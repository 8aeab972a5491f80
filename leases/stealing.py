"""Who idles takes unstarted blocks of who is slow or silent (R2), where that shortens the round.

A steal frees the blocks and moves as much quota in the open round from the victim to the idle
site; the grant that follows it needs to know nothing of steals. Who was stolen from in a round
takes nothing in it, so blocks never wander back.

Again and again the holder that would end last gives a block to the idle site that would end first.
Both are found without looking at all the others: `leases.slowest` keeps the holders in the order of
a bound that is cheap, and only those at its head are judged exactly.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from eventlog.events import LeaseStolen
from leases.agenda import Agenda, of
from leases.rows import Block, Incarnation
from leases.slowest import Rank, Slowest, block_s, slowest, surely_stalled_s
from leases.standing import Standing
from leases.states import LEASED, TRAINING
from leases.view import View

MAX_STEALS = 1000  # blocks of one decision


@dataclass(slots=True)
class _Victim:
    """`block_s`: per block; infinite for a silent one. `unstarted`: in the order it will start."""

    one: Incarnation
    block_s: float
    num_begun: int
    unstarted: list[Block]
    why: str

    @property
    def ends_s(self) -> float:
        """When all it holds would be trained, from now; 0 where nothing can be taken from it."""
        return (self.num_begun + len(self.unstarted)) * self.block_s if self.unstarted else 0.0


@dataclass(slots=True)
class _Idler:
    one: Incarnation
    room: int
    block_s: float | None  # None where its rate is not known
    num: int = 0
    taken: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (victim, epoch): blocks

    def ends_s(self, like_s: float) -> float:
        """When it would have trained one block more; as fast as the other where not known."""
        return (self.num + 1) * (like_s if self.block_s is None else self.block_s)


def steals(view: View) -> list[LeaseStolen]:
    """Unstarted blocks that idle sites would have trained before their holders would."""
    run, round_ = view.run(), view.round()
    if run.state != "running" or round_ is None or round_.state != "open":
        return []
    agenda = of(view)
    if not agenda.idle or not agenda.holders:
        return []
    tick_s, order = view.timing().tick_s, slowest(view)
    if not order.may_shorten(tick_s):
        return []
    victims, idlers = _Victims(view, order.holders.copy()), _Idlers(view, agenda, order)
    for _ in range(MAX_STEALS):
        victim = victims.last()
        if victim is None:
            break
        like_s = victim.block_s if math.isfinite(victim.block_s) else 0.0
        idler = idlers.first(like_s)
        if idler is None or idler.ends_s(like_s) + tick_s >= victim.ends_s:
            break
        block = victim.unstarted.pop()  # the last it would come to
        idler.num += 1
        idler.room -= 1
        idler.taken.setdefault((victim.one.token[0], block.epoch), []).append(block.block)
    return [
        _event(victims.known[seq], idler, epoch, blocks)
        for idler in sorted(idlers.known.values(), key=lambda idler: idler.one.site)
        for (seq, epoch), blocks in sorted(idler.taken.items())
    ]


class _Victims:
    """Holders of unstarted blocks; the one that ends last comes first, of equals by site name."""

    def __init__(self, view: View, ranked: list[Rank]) -> None:
        self._view, self._heap = view, ranked
        self.known: dict[int, _Victim] = {}

    def last(self) -> _Victim | None:
        """The one that would end last."""
        heap = self._heap
        while heap:
            bound, site, seq = heap[0]
            victim = self.known.get(seq)
            if victim is None:
                victim = self.known[seq] = _victim(self._view, seq)
            if not victim.unstarted:
                heapq.heappop(heap)
            elif bound != -victim.ends_s:
                heapq.heapreplace(heap, (-victim.ends_s, site, seq))
            else:
                return victim
        return None


class _Idlers:
    """Sites with nothing to train; the one that ends first comes first, of equals by site name.
    Those whose rate is not known stand apart: they count as fast as whom they take from."""

    def __init__(self, view: View, agenda: Agenda, order: Slowest) -> None:
        self._view, self._agenda = view, agenda
        self._timed, self._untimed = order.timed.copy(), order.untimed.copy()
        self.known: dict[int, _Idler] = {}

    def first(self, like_s: float) -> _Idler | None:
        """The one that would have trained one block more first."""
        found = [one for heap in (self._timed, self._untimed) if (one := self._head(heap))]
        return min(found, key=lambda one: (one.ends_s(like_s), one.one.site), default=None)

    def _head(self, heap: list[Rank]) -> _Idler | None:
        while heap:
            rank, site, seq = heap[0]
            idler = self.known.get(seq)
            if idler is None:
                if seq not in self._agenda.idle:
                    heapq.heappop(heap)
                    continue
                idler = self.known[seq] = _idler(self._view, self._agenda.standings[seq])
            exact = idler.ends_s(1.0)  # in order also for those who are as fast as another
            if idler.room <= 0:
                heapq.heappop(heap)
            elif rank != exact:
                heapq.heapreplace(heap, (exact, site, seq))
            else:
                return idler
        return None


def _idler(view: View, standing: Standing) -> _Idler:
    """A live site that could train and has nothing to. No room where it is silent."""
    one, full = view.incarnation(standing.seq), view.config().blocks_per_round
    assert one is not None
    needs_s = block_s(view, standing)
    if one.silent_ticks > view.timing().lost_ticks(view.run().live) // 2:
        return _Idler(one, 0, needs_s)
    return _Idler(one, _room(view, one, needs_s, full - standing.num_held), needs_s)


def _room(view: View, one: Incarnation, block_s: float | None, room: int) -> int:
    """Blocks it may take: a quota's worth, and none that its job has no time for (R12)."""
    if one.walltime_left_s is None:
        return room
    left_s = one.walltime_left_s - view.timing().margin_s
    return min(room, int(left_s / block_s)) if block_s else min(room, int(left_s > 0))


def _victim(view: View, seq: int) -> _Victim:
    """Who holds unstarted blocks, and how fast it gets through them."""
    timing, run = view.timing(), view.run()
    one, held = view.incarnation(seq), view.held(seq)
    assert one is not None
    unstarted = [block for block in held if block.state == LEASED]
    begun = sum(block.state == TRAINING for block in held)
    stalled_s = surely_stalled_s(one.stalled_ticks, timing, run.live) if begun else 0.0
    rate = one.tokens_per_s
    known_s = view.index().block_tokens / rate if rate else 0.0
    if one.silent_ticks > timing.lost_ticks(run.live) // 2:
        why = f"is silent for {one.silent_ticks} ticks"
        return _Victim(one, math.inf, begun, unstarted, why)
    return _Victim(one, max(known_s, stalled_s), begun, unstarted, "")


def _event(victim: _Victim, idler: _Idler, epoch: int, blocks: list[int]) -> LeaseStolen:
    why = victim.why or f"needs {victim.block_s:.3g} s a block, has {victim.num_begun} in work"
    return LeaseStolen(
        incarnation=victim.one.token,
        site=victim.one.site,
        epoch=epoch,
        blocks=tuple(sorted(blocks)),
        to=idler.one.token,
        reason=f"{victim.one.site} {why}; {idler.one.site} idles and trains them sooner",
    )
