"""Sites with bad networks: cut off for longer than a lease, slow, far away; one answer lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import pytest

from eventlog.codec import event_id
from eventlog.events import (
    BlockCompleted,
    DeltaPublished,
    SiteAdmitted,
    SiteDeparted,
    VersionApplied,
)
from tests.support.fleet import Fleet
from tests.support.netns import Network, network
from tests.support.server import Served
from tests.support.tap import Trap, event, tapped
from tests.support.watched import History
from tests.system.conftest import MakeFleet

LEASE_S = 4.0
KBIT_PER_S = 400  # a delta of this model, 40 kB, takes about a second
ROUND_TRIP_S = 0.1


@contextlib.asynccontextmanager
async def beta_elsewhere(
    tmp_path: Path, make_fleet: MakeFleet
) -> AsyncIterator[tuple[Fleet, Network]]:
    """A run of two sites that both have delivered; beta is in a network namespace of its own."""
    with network() as cable:
        served = Served(tmp_path / "store", host=cable.host)
        served.start()
        try:
            fleet = await make_fleet(served)
            fleet.networks["beta"] = cable.name
            fleet.coordinate()
            fleet.site("alpha")
            fleet.site("beta")
            await fleet.until(lambda log: _merged(log, 0) == {"alpha", "beta"}, "both", 60)
            yield fleet, cable
        finally:
            served.kill()


async def test_a_site_on_a_slow_link_takes_part_and_cut_off_it_is_departed_and_comes_back(
    tmp_path: Path, make_fleet: MakeFleet
) -> None:
    async with beta_elsewhere(tmp_path, make_fleet) as (fleet, cable):
        await _on_a_slow_link(fleet, cable)
        await _cut_off(fleet, cable, 1.5 * LEASE_S)
        assert len(fleet.history.of(SiteDeparted)) == 1
        await fleet.finish()
        await fleet.audit("--deep")


@pytest.mark.soak
@pytest.mark.parametrize("away_s", [1.0, 8.0, 30.0])
async def test_a_site_cut_off_for_so_long(
    tmp_path: Path, make_fleet: MakeFleet, away_s: float
) -> None:
    """Shorter than a lease nobody notices; 30 s are longer than a dead connection is believed."""
    async with beta_elsewhere(tmp_path, make_fleet) as (fleet, cable):
        for _ in range(3):
            await _cut_off(fleet, cable, away_s)
        assert len(fleet.history.of(SiteDeparted)) == (3 if away_s > LEASE_S else 0)
        await fleet.finish()
        await fleet.audit("--deep")


async def _on_a_slow_link(fleet: Fleet, cable: Network) -> None:
    """Its transfers take much longer than before; it is not departed, and its part is merged."""
    log = fleet.history
    await fleet.until(lambda _: len(_uploads_s(log, "site.beta", 0)) >= 2, "its transfers", 60)
    usual, at = _uploads_s(log, "site.beta", 0), log.last
    cable.slow(KBIT_PER_S)
    await fleet.until(
        lambda _: len(_uploads_s(log, "site.beta", at)) >= 2 and "beta" in _merged(log, at),
        "its deltas",
        60,
    )
    slow = _uploads_s(log, "site.beta", at)
    cable.fast()
    assert median(slow) > 3 * median(usual), (usual, slow)
    assert not log.of(SiteDeparted), "slow is not lost"


async def _cut_off(fleet: Fleet, cable: Network, away_s: float) -> None:
    """It trains on for nobody; the others go on, and it comes back as a new incarnation."""
    await fleet.until(lambda log: "training" in log.states("beta"), "beta in mid-round", 60)
    log, at = fleet.history, fleet.history.last
    cable.cut()
    if away_s > LEASE_S:
        await fleet.until(lambda _: log.of(SiteDeparted, after=at), "its departure")
        gone = log.of(SiteDeparted, after=at)[0][0]
        await asyncio.gather(
            asyncio.sleep(away_s - LEASE_S),
            fleet.until(lambda _: log.new_versions(gone) >= 1, "a version without it"),
        )
    else:
        await asyncio.sleep(away_s)
    mended = log.last
    cable.mend()
    await fleet.until(
        lambda _: any(c.site == "beta" and c.delta[0] > mended for _, c in log.merged(mended)),
        "its part again",
        60,
    )
    left = [(one.site, one.code) for _, one in log.of(SiteDeparted, after=at)]
    if away_s <= LEASE_S / 2:
        assert left == []
    elif away_s > LEASE_S:
        assert left in ([("beta", "lost")], [("beta", "replaced")]), left
        assert [one.site for _, one in log.of(SiteAdmitted, after=at)] == ["beta"]


@pytest.mark.settings("data.block_sequences=256", "inner.steps=384", "rounds.deadline_s=60")
async def test_r7_a_broker_100_ms_away_costs_no_pause_and_a_lost_answer_counts_nothing_twice(
    fleet: Fleet,
) -> None:
    """Beta's round trip takes 100 ms. A claim that was not made ahead would stop its trainer for so
    long before each block. Then the answer to one of its deltas is lost."""
    async with tapped(fleet.url, ROUND_TRIP_S / 2) as far:
        fleet.routes["beta"] = far.url
        fleet.coordinate()
        fleet.site("alpha")
        fleet.site("beta")
        await fleet.until(
            lambda log: min(len(_pauses_s(log, f"site.{name}")) for name in ("alpha", "beta")) >= 8,
            "their blocks",
            120,
        )
        log = fleet.history
        near, far_away = (median(_pauses_s(log, f"site.{name}")) for name in ("alpha", "beta"))
        assert far_away - near < ROUND_TRIP_S / 2, (near, far_away)

        lost = far.set(Trap(event("delta.published", "site.beta"), "after"))
        await fleet.until(lambda _: lost.sprung.is_set(), "the loss", 60)
        assert lost.caught is not None
        name = event_id(lost.caught.payload)
        await fleet.until(lambda log: _merged(log, _where(log, name)) >= {"beta"}, "it merged", 60)
        at = _where(log, name)
        assert sum(cut.delta[0] == at for _, cut in log.merged()) == 1
        await fleet.until(
            lambda _: any(when > at for when, _ in log.of(DeltaPublished, "site.beta")), "more", 60
        )
        ids = Counter(e.envelope.id for e in log.entries if e.envelope is not None)
        assert ids[name] == 1
        assert not log.of(SiteDeparted)
        await fleet.finish()
    await fleet.audit("--deep")


async def test_two_hubs_with_one_sites_name_on_two_machines_are_one_site_at_any_time(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The second is refused while the first speaks, follows it when it hangs, and is not disturbed
    by it when it wakes up: that one finds the door closed."""
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: _merged(log, 0) == {"alpha", "beta"}, "both", 60)
    twin = fleet.elsewhere(tmp_path / "elsewhere")
    beta = ("site", "run", fleet.run, "beta", "--data", str(fleet.data))
    answer = await twin.atoll(*beta)
    assert answer.code == 75 and "twin" in answer.err, answer
    await fleet.until(lambda log: "training" in log.states("beta"), "beta in mid-round")
    log, at = fleet.history, fleet.history.last
    thaw = fleet.freeze("beta")
    try:
        twin.site("beta")
        await fleet.until(lambda _: log.of(SiteAdmitted, after=at), "the other one", 60)
        new = log.of(SiteAdmitted, after=at)[0][0]
        fleet.leaving.add("beta")
        thaw()
        assert await fleet.ended("beta", 60) == 75
        await fleet.until(
            lambda _: any(c.site == "beta" and c.delta[0] > new for _, c in log.merged(new)),
            "what the other one trains",
            60,
        )
        assert [one.site for _, one in log.of(SiteAdmitted, after=at)] == ["beta"]
        await fleet.finish()
        assert await twin.ended("beta") == 0
    finally:
        twin.close()
    await fleet.audit("--deep")


def _merged(log: History, after: int) -> set[str]:
    return {cut.site for _, cut in log.merged() if cut.delta[0] >= after}


def _where(log: History, name: str) -> int:
    """The sequence of the event of that id; behind everything where it has not come."""
    found = [
        entry.record.sequence
        for entry in log.entries
        if entry.envelope is not None and entry.envelope.id == name
    ]
    return found[0] if found else 2**60


def _uploads_s(log: History, source: str, after: int) -> list[float]:
    """What storing deltas took, as the site says with each version."""
    said = [one.seconds for _, one in log.of(VersionApplied, source, after=after)]
    return [seconds["upload"] for seconds in said if "upload" in seconds]


def _pauses_s(log: History, source: str) -> list[float]:
    """How long the trainer did nothing between two blocks of one round, by the site's own clock:
    between a completion and the next there is one block's training, and what is left is a pause."""
    pauses, before = [], None
    for entry in log.entries:
        if entry.record.subject != source or entry.envelope is None:
            continue
        if isinstance(entry.event, DeltaPublished | VersionApplied):
            before = None  # an exchange lies between
        if isinstance(entry.event, BlockCompleted):
            if before is not None:
                pauses.append(entry.envelope.at - before - entry.event.seconds)
            before = entry.envelope.at
    return pauses
