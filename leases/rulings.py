"""Decisions held against the rules that allow them, at the position where they stand.

The lease table makes a decision void that cannot be carried out. It carries out what the rules do
not allow, where nothing in the table is in the way: a quarantine without a cause, a round that is
cut while a site still had time, a departure of who speaks. Who wrote the log may be dishonest; so
the audit looks at the state before each decision of the coordinator and asks what it rests on.

A decision may be overtaken: what a site or the operator said since the coordinator's previous
append is no reproach to it (`leases.audit`). Reasons in words are for people, and are not judged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, cast

from eventlog.codec import Entry
from eventlog.events import (
    BlobsReleased,
    BlockQuarantined,
    DeltaRefused,
    Event,
    LeaseGranted,
    RoundClosed,
    RoundOpened,
    RunFinished,
    RunPaused,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
)
from leases import policy, rulings_deltas
from leases.agenda import blocks_ahead
from leases.divergence import diverged
from leases.grounds import Finding, Standing
from leases.owing import overdue
from leases.rows import Incarnation
from leases.view import View


def weigh(db: sqlite3.Connection, entry: Entry, folded: int) -> list[Finding]:
    """What is wrong with a decision, by the state before it. To be asked before it is folded."""
    rule = RULES.get(type(cast(Event, entry.event)))
    view = View(db)
    if rule is None or not view.exists():
        return []
    return rule(Standing(view, folded), entry.event)


def _opened(at: Standing, event: RoundOpened) -> list[Finding]:
    """R13: as the configuration says, for members that can take part."""
    config, timing = at.view.config(), at.view.timing()
    rounds = config.rounds
    due = (rounds.quorum, timing.ticks(rounds.grace_s), max(1, timing.ticks(rounds.deadline_s)))
    said = (event.quorum, event.grace_ticks, event.deadline_ticks)
    found = []
    if said != due:
        what = f"round {event.round} opens with quorum, grace, deadline {said}"
        found.append(Finding("P2", "R13", what, f"the run's configuration: {due}"))
    for quota in event.quotas:
        one = at.view.incarnation(quota.incarnation[0])
        site = one.site if one else ""
        if quota.blocks > config.blocks_per_round:
            what = f"{site} gets a quota of {quota.blocks} blocks in round {event.round}"
            most = f"at most {config.blocks_per_round}, which is H"
            found.append(Finding("P2", "R13", what, most, site))
        if (one is None or one.state != "live") and not at.unread(site):
            what = f"incarnation {quota.incarnation[0]} gets a quota, and does not live"
            found.append(Finding("P4", "R13", what, "quotas of live incarnations", site))
    return found


def _granted(at: Standing, event: LeaseGranted) -> list[Finding]:
    """R10, R13, R15: in an open round, to who holds a version, within the target."""
    run, round_, site = at.view.run(), at.view.round(), event.site
    first = f"{event.epoch}:{event.blocks[0]}"
    found = []
    if round_ is None or round_.state != "open":
        what = f"{len(event.blocks)} blocks are granted to {site} with no round open"
        found.append(Finding("P2", "R13", what, "a grant within an open round", site, first))
    one = at.view.incarnation(event.incarnation[0])
    if one is not None and not policy.usable(at.view, one) and not at.unread(site):
        what = f"blocks are granted to {site}, which holds version {one.version} of {run.version}"
        what = what.replace("version None of", "no version, the run is at")
        expected = "a grant after it reports a usable version"
        found.append(Finding("P4", "R10", what, expected, site, first))
    found += _ahead(at, event, first)
    room = _room(at.view)
    if room is not None and len(event.blocks) > room:
        what = f"{len(event.blocks)} blocks are granted to {site}"
        expected = f"at most {room}: merged plus outstanding never exceed the target"
        found.append(Finding("P1", "R15", what, expected, site, first))
    epochs = at.view.config().target.epochs
    if epochs is not None and event.epoch >= epochs:
        what = f"blocks of epoch {event.epoch} are granted to {site}"
        expected = f"epochs 0 to {epochs - 1} only"
        found.append(Finding("P1", "R15", what, expected, site, first))
    return found


def _ahead(at: Standing, event: LeaseGranted, first: str) -> list[Finding]:
    """R13: blocks of the next round are granted ahead, a full quota of them at most."""
    view, (seq, _) = at.view, event.incarnation
    full, num_held = blocks_ahead(view.config(), view.run().version), len(view.held(seq))
    most = full if view.has_undecided(seq) else 2 * full
    if not full or num_held + len(event.blocks) <= most or at.unread(event.site):
        return []
    what = f"{event.site} is granted {len(event.blocks)} blocks beside the {num_held} it holds"
    return [Finding("P2", "R13", what, f"{most} blocks at most", event.site, first)]


def _room(view: View) -> int | None:
    """Blocks that may still be handed out; None where the target is no number of tokens."""
    target, run, index = view.config().target, view.run(), view.index()
    tokens = target.tokens
    if target.epochs is not None:
        tokens = target.epochs * index.epoch_tokens
    if tokens is None:
        return None
    left = tokens - run.merged_tokens - run.outstanding_tokens
    return max(0, -(-left // index.block_tokens))


def _departed(at: Standing, event: SiteDeparted) -> list[Finding]:
    """R4, R8, R10, R11, R14: who said it goes, is silent, hangs, is replaced or unfit."""
    one = at.view.incarnation(event.incarnation[0])
    if one is None or one.state == "departed" or at.unread(event.site):
        return []
    if event.code in _causes(at.view, one):
        return []
    k = at.view.timing().lost_ticks(at.view.run().live)
    what = (
        f"incarnation {one.token[0]} is departed as {event.code!r}; it is {one.state}, silent for "
        f"{one.silent_ticks} ticks"
    )
    return [Finding("P4", "R8", what, f"its lease until it leaves or K = {k} ticks pass", one.site)]


def _causes(view: View, one: Incarnation) -> set[str]:
    """The codes by which it may be departed now."""
    causes = {one.code} if one.state == "departing" else set()
    joins = [join for join in view.waiting_joins() if join.site == one.site]
    if one.silent_ticks >= view.timing().lost_ticks(view.run().live):
        causes |= {"lost", "replaced"} if joins else {"lost"}
    if any(join.predecessor == one.token for join in joins):
        causes.add("replaced")
    limit = view.config().limits.refusals
    if one.refusals >= limit or one.mismatches >= policy.UNFIT_MISMATCHES:
        causes.add("unfit")
    if overdue(view, one):
        causes.add("lost")
    return causes


def _answered(at: Standing, event: SiteAdmitted | SiteRefused) -> list[Finding]:
    """R11: the answer that the manifest, the arithmetic and who lives under that name give."""
    if at.unread(event.site):
        return []
    joins = [one for one in at.view.waiting_joins() if one.token == event.join]
    said = event.code if isinstance(event, SiteRefused) else "admitted"
    for join in joins:
        due = ["admitted" if isinstance(one, SiteAdmitted) else cast(SiteRefused, one).code
               for one in policy.answer(at.view, join)]  # fmt: skip
        if due != [said]:
            what = f"the join {join.token[0]} of {join.site} is answered with {said!r}"
            expected = repr(due[0]) if due else "no answer yet: its predecessor lives"
            return [Finding("P8", "R11", what, expected, join.site)]
    return []


def _finished(at: Standing, event: RunFinished) -> list[Finding]:
    """R2: a stopped run ends when everybody has left."""
    if event.outcome != "stopped":
        return []
    names = ", ".join(one.site for one in at.view.live())
    what = f"the run is ended as stopped while {names} live"
    return [Finding("P2", "R2", what, "the departure of every site first")] if names else []


def _paused(at: Standing, event: RunPaused) -> list[Finding]:
    """R2: the coordinator pauses a run that has diverged, and no other."""
    if diverged(at.view) is not None:
        return []
    what = "the coordinator pauses the run, which has not diverged by [divergence]"
    return [Finding("P2", "R2", what, "a run that goes on until an operator pauses it")]


RULES: dict[type[Event], Callable[[Standing, Any], list[Finding]]] = {
    RunPaused: _paused,
    RoundOpened: _opened,
    LeaseGranted: _granted,
    DeltaRefused: rulings_deltas.refused,
    RoundClosed: rulings_deltas.closed,
    BlockQuarantined: rulings_deltas.quarantined,
    SiteDeparted: _departed,
    SiteAdmitted: _answered,
    SiteRefused: _answered,
    BlobsReleased: rulings_deltas.released,
    RunFinished: _finished,
}
