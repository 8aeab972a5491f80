"""The coordinator's decisions about sites and leases: pure functions of the lease table.

Each returns the events to append next, with their reasons (P6), or nothing. The same state gives
the same decisions; time is the ticks the fold counted. Who calls them: `outer.decide`.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

from eventlog.config import RunConfig
from eventlog.events import (
    EpochClosed,
    Event,
    LeaseGranted,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
    shortened,
)
from leases.blocks import BlockIndex
from leases.owing import overdue
from leases.progress import goal
from leases.rows import Incarnation, Join, Run
from leases.states import LEASED, TRAINING
from leases.view import View

MAX_BLOCKS_PER_GRANT = 1000  # keeps one event well below the log's payload limit
UNFIT_MISMATCHES = 2  # version mismatches in a row (DESIGN 6)


def departures(view: View) -> list[Event]:
    """Who has gone, said so, or proved unfit (R4, R8, R11)."""
    timing, run = view.timing(), view.run()
    lost_ticks = timing.lost_ticks(run.live)
    named = {(join.site, join.predecessor) for join in view.waiting_joins() if join.predecessor}
    joining = {join.site for join in view.waiting_joins()}
    found = [
        (one, _departure(view, one, lost_ticks, (one.site, one.token) in named, joining))
        for one in view.live()
    ]
    return [
        SiteDeparted.model_validate({"incarnation": one.token, "site": one.site, **why})
        for one, why in found
        if why
    ]


def _departure(
    view: View, one: Incarnation, lost_ticks: int, is_named: bool, joining: set[str]
) -> dict[str, Any]:
    """Code, reason and back-off of a departure that is due; empty where none is."""
    timing, limits = view.timing(), view.config().limits
    if is_named:
        return _why("replaced", "its successor on the same machine holds its lock")
    if one.silent_ticks >= lost_ticks:
        why = f"silent for {one.silent_ticks} ticks ({one.silent_ticks * timing.tick_s:g} s)"
        return _why("replaced" if one.site in joining else "lost", why)
    if one.state == "departing":
        return _why(one.code, one.reason)
    if one.mismatches >= UNFIT_MISMATCHES:
        return _why("unfit", f"holds wrong parameters, {one.mismatches} versions in a row")
    if one.refusals >= limits.refusals:
        ticks = timing.ticks(limits.backoff_s)
        why = f"{one.refusals} deltas in a row were refused for their values"
        return _why("unfit", f"{why}; it may come back in {limits.backoff_s:g} s", ticks)
    hangs = overdue(view, one)
    return _why("lost", hangs) if hangs else {}


def _why(code: str, reason: str, backoff_ticks: int = 0) -> dict[str, Any]:
    return {"code": code, "reason": reason, "backoff_ticks": backoff_ticks}


def joins(view: View) -> list[Event]:
    """Answers to the sites at the door (R11). A join under a live name waits for ticks."""
    decided: list[Event] = []
    for join in view.waiting_joins():
        decided += answer(view, join)
    return decided


def answer(view: View, join: Join) -> list[Event]:
    """The answer to one join that can be given now; nothing while it has to wait."""
    if join.manifest_digest != view.manifest_digest():
        reason = (
            f"its data manifest is {join.manifest_digest[:12]}, the run's is "
            f"{view.manifest_digest()[:12]}: build the data from the same source and tokenizer "
            "(compare with: atoll data verify DIR OTHER)"
        )
        return [_refusal(join, "manifest", True, reason)]
    differing = _first_difference(join.arithmetic, view.arithmetic())
    if differing and view.config().arithmetic == "strict":
        reason = f"its canonical arithmetic differs from the run's, first in {differing!r}"
        return [_refusal(join, "arithmetic", True, reason)]
    if view.run().state == "stopping":
        return [_refusal(join, "finished", True, f"the run is ending: {view.run().reason}")]
    live = view.live_at(join.site)
    wait_ticks = view.backoff_until(join.site) - view.run().ticks
    if live is None and wait_ticks > 0:
        wait_s = wait_ticks * view.timing().tick_s
        reason = f"its deltas were refused for their values; it may join in {wait_s:g} s"
        return [_refusal(join, "backoff", False, reason)]
    if live is None:
        return [SiteAdmitted(site=join.site, join=join.token, reason="manifest and arithmetic fit")]
    if live.last_seq > (join.incarnation_seen or 0) and not join.successor:
        reason = f"{join.site} lives and speaks (incarnation {live.token[0]}): a twin must wait"
        return [_refusal(join, "twin", False, reason)]
    return []


def _refusal(join: Join, code: str, final: bool, reason: str) -> SiteRefused:
    return SiteRefused.model_validate(
        {
            "site": join.site,
            "join": join.token,
            "code": code,
            "final": final,
            "reason": shortened(reason),
        }
    )


def _first_difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """The first operation, in the run's order, whose digest differs; '' where none does."""
    return next((name for name in theirs if name in ours and ours[name] != theirs[name]), "")


def epochs(view: View) -> list[Event]:
    """Epochs of which everything is merged or quarantined (R15)."""
    return [
        EpochClosed(
            epoch=row["epoch"],
            blocks=row["blocks"],
            tokens=row["merged_tokens"],
            num_quarantined=row["quarantined"],
            reason=f"all {row['blocks']} blocks are merged"
            + (f" but {row['quarantined']} quarantined ones" if row["quarantined"] else ""),
        )
        for row in view.epochs()
        if row["closed_seq"] is None and row["merged"] + row["quarantined"] == row["blocks"]
    ]


def grantable(view: View, limit: int) -> list[tuple[int, int]]:
    """Up to `limit` available blocks, (epoch, block), in the order they are granted: the target
    is never exceeded by more than part of a block, freed blocks first, then the epoch's order;
    the next epoch once one has none available (R15)."""
    run, config, index = view.run(), view.config(), view.index()
    limit = min(limit, _blocks_to_target(run, config, index))
    found: list[tuple[int, int]] = []
    known = {row["epoch"]: row for row in view.epochs()}
    epoch = min((e for e, row in known.items() if _has_available(row)), default=len(known))
    while len(found) < limit:
        if config.target.epochs is not None and epoch >= config.target.epochs:
            break
        row = known.get(epoch, {"cursor": 0, "freed": 0})
        want = limit - len(found)
        freed = view.freed(epoch, want) if row["freed"] else []
        found += [(epoch, block) for block in freed]
        position = row["cursor"]
        while len(found) < limit and position < index.num_blocks:
            block = index.at(epoch, position)
            if not view.touched(epoch, block):
                found.append((epoch, block))
            position += 1
        epoch += 1
    return found


def _has_available(row: dict[str, int]) -> bool:
    return row["freed"] > 0 or row["cursor"] < row["blocks"]


def _blocks_to_target(run: Run, config: RunConfig, index: BlockIndex) -> int:
    """Blocks that may still be handed out: merged plus outstanding stay within the target,
    rounded up to a block. For a target in rounds the quotas are the bound."""
    aim = goal(config, index)
    if aim.tokens is None:
        return 1 << 30
    left = aim.tokens - run.merged_tokens - run.outstanding_tokens
    return max(0, math.ceil(left / index.block_tokens))


def grants(view: View) -> list[LeaseGranted]:
    """Blocks for the members of the open round, up to their quotas, and for who came late."""
    run, round_ = view.run(), view.round()
    if run.state != "running" or round_ is None or round_.state != "open":
        return []
    quotas = view.quotas(round_.round)
    wants: list[tuple[Incarnation, int, int | None]] = []
    for one in view.live():
        if not usable(view, one) or one.drain or one.state != "live":
            continue
        quota = quotas.get(one.token[0])
        late = _late_quota(view, one, quotas) if quota is None else None
        want = (quota or late or 0) - view.num_granted(one.token[0], round_.round)
        if want > 0:
            wants.append((one, want, late))
    blocks = grantable(view, sum(want for _, want, _ in wants))
    decided: list[LeaseGranted] = []
    for (one, _, late), share in zip(wants, _deal(blocks, [w for _, w, _ in wants]), strict=True):
        decided += _grant_events(one, share, late, round_.round)
    return sorted(decided, key=lambda event: event.epoch)  # R15: an epoch before the next


def quota_of(one: Incarnation, fastest: float, full: int) -> int:
    """Blocks that it trains while the fastest site trains `full`, at least one; whose rate is not
    known yet counts as the fastest."""
    return max(1, int(full * (one.tokens_per_s / fastest))) if one.tokens_per_s else full


def usable(view: View, one: Incarnation) -> bool:
    """Whether it proved to hold a version that a delta may still be based on."""
    staleness = view.config().outer.max_staleness
    return one.version is not None and view.run().version - one.version <= staleness


def _late_quota(view: View, one: Incarnation, quotas: dict[int, int]) -> int | None:
    """Who is admitted in mid-round gets the share of a full quota that the round has left; all of
    it where nobody holds a block or has delivered: the round then waits for nobody else (P2)."""
    fastest = max(other.tokens_per_s for other in view.live())
    full = quota_of(one, fastest, view.config().blocks_per_round)
    if one.version != view.run().version:
        return None
    if not view.num_held() and not view.deltas("undecided"):
        return full
    left = sum(
        block.state in (LEASED, TRAINING) for member in quotas for block in view.held(member)
    )
    return int(full * left / max(1, sum(quotas.values()))) or None


def _deal(blocks: list[tuple[int, int]], wants: list[int]) -> list[list[tuple[int, int]]]:
    """Deal blocks out one at a time, each to who would have the smallest part of its quota with
    it: a short rest is shared by rate, so that all end it together."""
    hands: list[list[tuple[int, int]]] = [[] for _ in wants]
    queue = [(1 / want, who) for who, want in enumerate(wants)]
    heapq.heapify(queue)
    for block in blocks:
        if not queue:
            break
        _, who = heapq.heappop(queue)
        hands[who].append(block)
        if len(hands[who]) < wants[who]:
            heapq.heappush(queue, ((len(hands[who]) + 1) / wants[who], who))
    return hands


def _grant_events(
    one: Incarnation, share: list[tuple[int, int]], late: int | None, round_: int
) -> list[LeaseGranted]:
    events: list[LeaseGranted] = []
    for epoch in sorted({epoch for epoch, _ in share}):
        blocks = [block for e, block in share if e == epoch]
        for first in range(0, len(blocks), MAX_BLOCKS_PER_GRANT):
            some = tuple(blocks[first : first + MAX_BLOCKS_PER_GRANT])
            plural = "s" * (len(some) != 1)
            reason = f"{len(some)} block{plural} towards its quota in round {round_}"
            if late:
                some_of = f"{len(some)} of the {late} block{'s' * (late != 1)}"
                reason = f"{some_of} that round {round_} has time for"
            events.append(
                LeaseGranted(
                    incarnation=one.token,
                    site=one.site,
                    epoch=epoch,
                    blocks=some,
                    quota=late,
                    reason=reason,
                )
            )
    return events
