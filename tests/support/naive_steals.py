"""Stealing said the plain way: all idle sites and all holders are looked at for each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from eventlog.events import LeaseStolen
from leases.rows import Block, Incarnation, Round
from leases.states import LEASED, TRAINING
from leases.view import View

MAX_STEALS = 1000


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
        """When all it holds would be trained, from now."""
        return (self.num_begun + len(self.unstarted)) * self.block_s


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
    states = _held_states(view)
    if not any(LEASED in held for held in states.values()):
        return []
    idlers = _idlers(view, round_, states)
    victims = _victims(view, states) if idlers else []
    by_seq = {victim.one.token[0]: victim for victim in victims}
    tick_s = view.timing().tick_s
    for _ in range(MAX_STEALS):
        found = _best(victims, idlers, tick_s)
        if found is None:
            break
        victim, idler = found
        block = victim.unstarted.pop()  # the last it would come to
        idler.num += 1
        idler.room -= 1
        idler.taken.setdefault((victim.one.token[0], block.epoch), []).append(block.block)
    return [
        _event(by_seq[seq], idler, epoch, blocks)
        for idler in idlers
        for (seq, epoch), blocks in sorted(idler.taken.items())
    ]


def _best(
    victims: list[_Victim], idlers: list[_Idler], tick_s: float
) -> tuple[_Victim, _Idler] | None:
    """The holder that would end last, and the idle site that would end first, where the block is
    trained there sooner by more than the tick that the detour costs."""
    open_victims = [victim for victim in victims if victim.unstarted]
    roomy = [idler for idler in idlers if idler.room > 0]
    if not open_victims or not roomy:
        return None
    victim = max(open_victims, key=lambda one: one.ends_s)
    like_s = victim.block_s if math.isfinite(victim.block_s) else 0.0
    idler = min(roomy, key=lambda one: one.ends_s(like_s))
    return (victim, idler) if idler.ends_s(like_s) + tick_s < victim.ends_s else None


def _held_states(view: View) -> dict[int, dict[str, int]]:
    """Undelivered blocks by state, of every incarnation that holds any: in one question, since a
    thousand sites may be asked about at every event."""
    found: dict[int, dict[str, int]] = {}
    for seq, state, num in view.db.execute(
        "SELECT incarnation, state, count(*) FROM blocks WHERE incarnation IS NOT NULL "
        "GROUP BY incarnation, state"
    ):
        found.setdefault(seq, {})[state] = num
    return found


def _idlers(view: View, round_: Round, states: dict[int, dict[str, int]]) -> list[_Idler]:
    """Live sites that could train and have nothing to: they hold no block that is not trained."""
    run, full = view.run(), view.config().blocks_per_round
    robbed, silent = _robbed(view, round_.round), view.timing().lost_ticks(run.live) // 2
    found = []
    for one in view.live():
        held = states.get(one.token[0], {})
        if (
            one.state == "live"
            and not one.drain
            and one.version == run.version
            and one.token[0] not in robbed
            and one.silent_ticks <= silent
            and not held.keys() & {LEASED, TRAINING}
            and (not held or view.has_undecided(one.token[0]))  # else it is about to deliver
        ):
            block_s = _block_s(view, one)
            room = _room(view, one, block_s, full - sum(held.values()))
            found.append(_Idler(one, room, block_s))
    return found


def _robbed(view: View, round_: int) -> set[int]:
    """Incarnations that blocks were stolen from in a round."""
    sql = "SELECT incarnation FROM members WHERE round = ? AND stolen > 0"
    return {row[0] for row in view.db.execute(sql, (round_,))}


def _room(view: View, one: Incarnation, block_s: float | None, room: int) -> int:
    """Blocks it may take: a quota's worth, and none that its job has no time for (R12)."""
    if one.walltime_left_s is None:
        return room
    left_s = one.walltime_left_s - view.timing().margin_s
    return min(room, int(left_s / block_s)) if block_s else min(room, int(left_s > 0))


def _victims(view: View, states: dict[int, dict[str, int]]) -> list[_Victim]:
    """Who holds unstarted blocks, and how fast it gets through them."""
    timing, run = view.timing(), view.run()
    silent = timing.lost_ticks(run.live) // 2
    found = []
    for one in view.live():
        counts = states.get(one.token[0], {})
        if LEASED not in counts:
            continue
        unstarted = [block for block in view.held(one.token[0]) if block.state == LEASED]
        begun = counts.get(TRAINING, 0)
        # its last step may be as young as the first tick, its next heartbeat not yet due
        surely_s = (one.stalled_ticks - 1) * timing.tick_s - timing.heartbeat_s(run.live)
        stalled_s = max(0.0, surely_s) if begun else 0.0
        block_s, why = max(_block_s(view, one) or 0.0, stalled_s), ""
        if one.silent_ticks > silent:
            block_s, why = math.inf, f"is silent for {one.silent_ticks} ticks"
        found.append(_Victim(one, block_s, begun, unstarted, why))
    return found


def _block_s(view: View, one: Incarnation) -> float | None:
    rate = one.tokens_per_s
    return view.index().block_tokens / rate if rate else None


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
