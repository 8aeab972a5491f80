"""Real processes whose training and exchange overlap: who dies loses nothing of anybody's, and
trainers stand still for less than they do without overlap."""

from __future__ import annotations

import pytest

from eventlog.codec import Entry
from eventlog.events import DeltaPublished, LeaseGranted, RunFinished, SiteDeparted
from leases.overhead import table
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.watched import History
from tests.system.conftest import MakeFleet

DELAYED = ("outer.overlap=delayed", "outer.delta_codec=4-bit", "outer.update_codec=4-bit")
SITES = ("alpha", "beta", "gamma")


@pytest.mark.settings(*DELAYED)
async def test_a_site_is_killed_while_it_trains_beside_its_exchange(fleet: Fleet) -> None:
    fleet.coordinate()
    for name in SITES:
        fleet.site(name)
    await fleet.until(lambda log: log.view.run().version >= 2, "version 2", 60.0)
    await fleet.until(_trains_beside, "beta to train beside an undecided delta", 60.0)
    fleet.kill_site("beta")
    at, log = fleet.history.last, fleet.history
    fleet.site("beta")
    await fleet.until(lambda _: log.of(SiteDeparted, after=at), "beta's departure", 60.0)
    gone = log.of(SiteDeparted, after=at)[0][0]
    await fleet.until(
        lambda _: any(cut.site == "beta" and cut.delta[0] > gone for _, cut in log.merged(gone)),
        "a delta of the new one",
        60.0,
    )
    await fleet.until(lambda _: log.new_versions(gone) >= 3, "versions behind that", 60.0)
    await fleet.finish()
    found = await fleet.audit("--deep")
    assert found["model_digest"] == log.of(RunFinished)[0][1].parameters_digest
    assert [one for _, one in log.of(LeaseGranted) if "ahead" in one.reason]
    codecs = {one.codec for _, one in log.of(DeltaPublished) if not one.last}
    assert codecs == {"4-bit"}


async def test_trainers_idle_less_with_overlap(make_fleet: MakeFleet, broker: Served) -> None:
    shares = {}
    for overlap in ("none", "delayed"):
        fleet = await make_fleet(broker, f"outer.overlap={overlap}")
        fleet.coordinate()
        for name in SITES:
            fleet.site(name)
        await fleet.until(lambda log: log.view.run().version >= 12, "version 12", 120.0)
        rows = [row for row in table(_folded(fleet.history)) if row.version > 2]
        await fleet.finish()
        await fleet.audit()
        shares[overlap] = sum(row.stall for row in rows) / sum(row.wall for row in rows)
    print(f"share of wall time that trainers stood still: {shares}")
    assert shares["delayed"] < 0.7 * shares["none"]


def _folded(log: History) -> list[tuple[Entry, str]]:
    void = {sequence: why for sequence, _, why in log.voids}
    return [(entry, void.get(entry.record.sequence, "")) for entry in log.entries]


def _trains_beside(log: History) -> bool:
    one = log.view.live_at("beta")
    return (
        one is not None
        and log.view.has_undecided(one.token[0])
        and "training" in log.states("beta")
    )
