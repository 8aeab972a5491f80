"""The broker is away for minutes in mid-round: what sites hold then is delivered after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pytest

from eventlog.events import (
    COORDINATOR,
    BlockCompleted,
    BlockStarted,
    DeltaBlock,
    DeltaPublished,
    Event,
    SiteAdmitted,
    SiteDeparted,
    VersionApplied,
)
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.watched import History

SITES = ("alpha", "beta")
CAUGHT_UP_S = 10.0  # after the broker is back
WITHIN_S = 300.0  # bounds what has no limit of its own: on a busy machine a block takes a minute


@dataclass(frozen=True, slots=True)
class Outage:
    """`began_s`, `ended_s`: Unix times between which nobody could reach the broker."""

    log: History
    began_s: float
    ended_s: float

    def of(
        self, kind: type[Event], site: str, when: Callable[[float], bool]
    ) -> list[tuple[float, Event]]:
        """(seconds since the outage's end, event) of a site, by the broker's time of it."""
        found = [
            (entry.record.time_ns / 1e9, entry.event)
            for entry in self.log.entries
            if isinstance(entry.event, kind) and entry.record.subject == f"site.{site}"
        ]
        return [(at - self.ended_s, event) for at, event in found if when(at)]

    def before(self, kind: type[Event], site: str) -> list[Event]:
        return [event for _, event in self.of(kind, site, lambda at: at <= self.began_s)]

    def after(self, kind: type[Event], site: str) -> list[tuple[float, Event]]:
        return self.of(kind, site, lambda at: at > self.began_s)  # some before `start` returned

    def begun(self, site: str) -> set[tuple[int, int]]:
        """Blocks whose start the broker had acknowledged, and whose end it had not been told."""
        return _keys(self.before(BlockStarted, site)) - _keys(self.before(BlockCompleted, site))


def merged_after(log: History, at: int) -> set[str]:
    """The sites whose deltas were published, and merged, after a position."""
    return {cut.site for _, cut in log.merged(at) if cut.delta[0] > at}


@pytest.mark.parametrize("away_s", [60.0, pytest.param(600.0, marks=pytest.mark.soak)])
@pytest.mark.timeout(1200)
@pytest.mark.settings("data.block_sequences=256", "inner.steps=384", "rounds.deadline_s=60")
async def test_events_and_deltas_of_an_outage_are_delivered_by_the_incarnation_that_made_them(
    own_broker: Served, fleet: Fleet, away_s: float
) -> None:
    fleet.coordinate()
    for name in SITES:
        fleet.site(name)
    await fleet.until(
        lambda log: all(len(log.of(VersionApplied, f"site.{name}")) >= 2 for name in SITES),
        "two versions",
        WITHIN_S,
    )
    await fleet.until(
        lambda log: all("training" in log.states(site) for site in SITES), "both", WITHIN_S
    )
    log = fleet.history
    own_broker.kill()
    began_s, at = time.time(), log.last
    await asyncio.sleep(away_s)
    own_broker.start()
    outage = Outage(log, began_s, time.time())
    await fleet.until(lambda log: merged_after(log, at) == set(SITES), "their deltas", WITHIN_S)
    await fleet.until(
        lambda _: all(outage.after(VersionApplied, name) for name in SITES), "a version", WITHIN_S
    )
    assert not log.of(SiteAdmitted, after=at) and not log.of(SiteDeparted, after=at)
    for name in SITES:
        _lost_nothing(outage, name)
        _stood_still_for_no_longer_than_it_had_to(outage, name)
    decided = [
        entry.record.time_ns / 1e9 - outage.ended_s
        for entry in log.entries[at:]
        if entry.record.subject == COORDINATOR
    ]
    assert min(decided) <= CAUGHT_UP_S
    await fleet.finish(WITHIN_S)
    assert (await fleet.audit("--deep"))["ok"]


def _lost_nothing(outage: Outage, site: str) -> None:
    """What was in work was completed, and told soon after the outage, by a site that then had more
    to do; and it counts."""
    begun, told = outage.begun(site), outage.after(BlockCompleted, site)
    assert begun, "it had something in work"
    when = {_key(event): after_s for after_s, event in told}
    assert begun <= when.keys()
    assert max(when[block] for block in begun) <= CAUGHT_UP_S
    assert outage.after(BlockStarted, site)[0][0] <= CAUGHT_UP_S
    merged = {member.delta[0] for _, member in outage.log.merged()}
    counted = [
        _keys(event.blocks)
        for sequence, event in outage.log.of(DeltaPublished, f"site.{site}")
        if sequence in merged
    ]
    assert begun <= set().union(*counted)


def _stood_still_for_no_longer_than_it_had_to(outage: Outage, site: str) -> None:
    """The trainer stood still for the outage less what it could train in it: the blocks that were
    begun, of the first of which a part was done."""
    begun = outage.begun(site)
    took_s = sorted(
        event.seconds for _, event in outage.after(BlockCompleted, site) if _key(event) in begun
    )
    allowed_s = outage.ended_s - outage.began_s - sum(took_s[:-1]) + CAUGHT_UP_S
    usual_s = median(event.stall_s for event in outage.before(VersionApplied, site))
    stood_s = outage.after(VersionApplied, site)[0][1].stall_s
    told_s = max(when for when, event in outage.after(BlockCompleted, site) if _key(event) in begun)
    print(
        f"{site}: away {outage.ended_s - outage.began_s:.1f} s, {len(begun)} blocks begun took "
        f"{sum(took_s):.1f} s, told {told_s:.1f} s after it; stood still {stood_s:.1f} s, may "
        f"{allowed_s + usual_s:.1f} s"
    )
    assert stood_s <= allowed_s + usual_s


def _key(one: BlockStarted | BlockCompleted | DeltaBlock) -> tuple[int, int]:
    return one.epoch, one.block


def _keys(blocks) -> set[tuple[int, int]]:
    return {_key(one) for one in blocks}
