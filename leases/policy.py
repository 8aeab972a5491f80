"""The coordinator's decisions about sites and leases: pure functions of the lease table.

Each returns the events to append next, with their reasons (P6), or nothing. The same state gives
the same decisions; time is the ticks the fold counted. Who calls them: `outer.decide`.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from eventlog.events import (
    EpochClosed,
    Event,
    LeaseGranted,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
    shortened,
)
from eventlog.log import MAX_BATCH
from leases import standing
from leases.agenda import Agenda, of
from leases.owing import overdue, owing_late
from leases.rows import Incarnation, Join
from leases.standing import UNFIT_MISMATCHES as UNFIT_MISMATCHES
from leases.standing import Standing
from leases.supply import grantable as grantable
from leases.supply import num_grantable, open_epochs
from leases.view import View

MAX_BLOCKS_PER_GRANT = 1000  # keeps one event well below the log's payload limit
Want = tuple[tuple[str, int], int, int | None]  # (site, incarnation), blocks, quota if it is late


def departures(view: View) -> list[Event]:
    """Who has gone, said so, or proved unfit (R4, R8, R11)."""
    lost_ticks = view.timing().lost_ticks(view.run().live)
    joining = of(view).joins
    named = {(join.site, join.predecessor) for join in joining.values() if join.predecessor}
    found = [
        (one, _departure(view, one, lost_ticks, (one.site, one.token) in named, joining))
        for one in _may_depart(view, lost_ticks, {token[0] for _, token in named})
    ]
    return [
        SiteDeparted.model_validate({"incarnation": one.token, "site": one.site, **why})
        for one, why in found
        if why
    ]


def _may_depart(view: View, lost_ticks: int, named: set[int]) -> list[Incarnation]:
    """Live incarnations whose departure may be due, by site name."""
    agenda, now = of(view), view.run().term_ticks
    seqs = {*agenda.leaving, *named, *agenda.silent(now - lost_ticks), *owing_late(view)}
    found = [one for seq in seqs if (one := view.incarnation(seq)) and one.state != "departed"]
    return sorted(found, key=lambda one: one.site)


def _departure(
    view: View, one: Incarnation, lost_ticks: int, is_named: bool, joining: Container[str]
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
    agenda, decided = of(view), []
    for site in sorted(agenda.doors, key=lambda site: agenda.joins[site].token):
        answers = answer(view, agenda.joins[site])
        decided += answers
        if not answers:
            agenda.doors.discard(site)  # until it, or its predecessor, says something more
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
            tokens=row["tokens"],
            num_quarantined=row["quarantined"],
            reason=f"all {row['blocks']} blocks are merged"
            + (f" but {row['quarantined']} quarantined ones" if row["quarantined"] else ""),
        )
        for row in open_epochs(view)
        if row["merged"] + row["quarantined"] == row["blocks"]
    ]


def grants(view: View, max_sites: int = MAX_BATCH) -> list[LeaseGranted]:
    """Blocks for the members of the open round, up to their quotas, ahead of the next one for who
    has delivered where exchange and training overlap, and for who came late; where there are enough
    for all, for the first `max_sites` of them."""
    run, round_ = view.run(), view.round()
    if run.state != "running" or round_ is None or round_.state != "open":
        return []
    agenda = of(view)
    late = _late_wants(agenda, view)
    num_wanted = agenda.num_wanted + sum(want for _, want, _ in late)
    num_there = num_grantable(view, num_wanted)
    if not num_there:
        return []
    wants = _first_wants(agenda, late, max_sites if num_there == num_wanted else num_wanted)
    blocks = grantable(view, min(num_there, sum(want for _, want, _ in wants)))
    decided: list[LeaseGranted] = []
    shares = _deal(blocks, [want for _, want, _ in wants])
    for ((_, seq), _, quota), share in zip(wants, shares, strict=True):
        ahead = quota is None and agenda.gets_ahead(seq)
        decided += _grant_events(agenda.standings[seq], share, quota, round_.round, ahead)
    return sorted(decided, key=lambda event: event.epoch)  # R15: an epoch before the next


def _first_wants(agenda: Agenda, late: list[Want], num: int) -> list[Want]:
    """The first sites that want blocks, by name."""
    members: Iterator[Want] = ((key, want, None) for key, want in agenda.wanting)
    both = heapq.merge(members, late, key=lambda want: want[0]) if late else members
    return list(islice(both, num))


def _late_wants(agenda: Agenda, view: View) -> list[Want]:
    """Who came in mid-round, and what there is for it."""
    found: list[Want] = []
    for seq in agenda.late:
        one = agenda.standings[seq]
        quota = _late_quota(agenda, view, one)
        if quota is not None and quota > one.num_granted:
            found.append(((one.site, seq), quota - one.num_granted, quota))
    return sorted(found)


def quota_of(one: Incarnation | Standing, fastest: float, full: int) -> int:
    """Blocks that it trains while the fastest site trains `full`, at least one; whose rate is not
    known yet counts as the fastest."""
    return max(1, int(full * (one.tokens_per_s / fastest))) if one.tokens_per_s else full


def usable(view: View, one: Incarnation) -> bool:
    """Whether it proved to hold a version that a delta may still be based on."""
    staleness = view.config().outer.max_staleness
    return standing.usable(one.version, view.run().version, staleness)


def _late_quota(agenda: Agenda, view: View, one: Standing) -> int | None:
    """Who is admitted in mid-round gets the share of a full quota that the round has left; all of
    it where nobody holds a block or has delivered: the round then waits for nobody else (P2)."""
    is_first = not agenda.num_held and not agenda.num_undecided
    if not is_first and not agenda.num_left:
        return None
    full = quota_of(one, agenda.fastest(), view.config().blocks_per_round)
    if is_first:
        return full
    return int(full * agenda.num_left / max(1, agenda.num_quota)) or None


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
    one: Standing,
    share: list[tuple[int, int]],
    late: int | None,
    round_: int,
    ahead: bool = False,
) -> list[LeaseGranted]:
    events: list[LeaseGranted] = []
    for epoch in sorted({epoch for epoch, _ in share}):
        blocks = [block for e, block in share if e == epoch]
        for first in range(0, len(blocks), MAX_BLOCKS_PER_GRANT):
            some = tuple(blocks[first : first + MAX_BLOCKS_PER_GRANT])
            plural = "s" * (len(some) != 1)
            reason = f"{len(some)} block{plural} towards its quota in round {round_}"
            if ahead:
                reason = f"{len(some)} block{plural} ahead, for the round after round {round_}"
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
