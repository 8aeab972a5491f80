"""Without a live site the run rests, and whoever comes brings it on (P2)."""

from __future__ import annotations

import asyncio

from eventlog.events import (
    BlockStarted,
    LeaseGranted,
    RoundCommitted,
    SiteDeparted,
    SnapshotSaved,
    VersionApplied,
)
from tests.support.fleet import Fleet
from tests.support.tap import Published, Trap, tapped
from tests.support.watched import History

LEASE_S = 4.0


async def test_with_all_sites_killed_nothing_is_written_until_one_comes(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")
    await fleet.until(lambda log: "training" in log.states("alpha"), "training")
    fleet.kill_site("alpha")
    fleet.kill_site("beta")
    await fleet.until(lambda log: len(log.of(SiteDeparted)) == 2, "both departures")
    assert [gone.code for _, gone in fleet.history.of(SiteDeparted)] == ["lost", "lost"]
    await fleet.settled()
    at_rest = fleet.history.last
    await asyncio.sleep(2 * LEASE_S)  # that nothing happens takes its time
    assert fleet.history.last == at_rest, fleet.said()
    assert fleet.history.view.num_held() == 0

    fleet.site("alpha")
    await fleet.until(lambda log: log.new_versions(at_rest) >= 2, "new versions")
    await fleet.finish()
    await fleet.audit()


async def test_who_comes_in_mid_round_starts_from_the_newest_version_and_contributes(
    fleet: Fleet,
) -> None:
    said: list[str] = []  # what the late site asks of the store, and which events it writes

    def note(message: Published) -> bool:
        said.append(str(message.event.get("type", message.subject)))
        return False

    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(_behind_a_snapshot, "a round on a version behind a snapshot", 60)
    async with tapped(fleet.url) as tap:
        with fleet.trainer_stopped("alpha"):  # so that the round stays open until somebody comes
            tap.set(Trap(note, "seen"))
            fleet.routes["late"] = tap.url
            fleet.site("late")
            await fleet.until(lambda log: log.of(BlockStarted, "site.late"), "its first block")
        assert VersionApplied.type in said, "it trains before it says which version it holds"
        await _both_contribute(fleet, said)


async def _both_contribute(fleet: Fleet, said: list[str]) -> None:
    log = fleet.history
    at, share = next((at, one) for at, one in log.of(LeaseGranted) if one.site == "late")
    assert share.quota is not None, "it got no share of the open round"
    assert 1 <= share.quota <= 8  # of the eight blocks that a whole round has
    await fleet.until(lambda log: "late" in {cut.site for _, cut in log.merged()}, "its part", 60)
    await fleet.until(
        lambda log: {"late", "alpha"} <= {cut.site for _, cut in log.merged(after=at)}, "both", 60
    )
    await fleet.finish()

    when, first = log.of(VersionApplied, "site.late")[0]
    commits = [one for committed, one in log.of(RoundCommitted) if committed < when]
    assert first.parameters_digest == commits[-1].parameters_digest
    snapshot = [one for saved, one in log.of(SnapshotSaved) if saved < when][-1]
    asked = " ".join(said[: said.index(VersionApplied.type)])
    updates = [one.update_blob for one in commits if one.version > snapshot.version]
    assert updates and all(blob in asked for blob in (snapshot.blob, *updates))
    older = [one.update_blob for one in commits if one.version <= snapshot.version]
    assert not any(blob in asked for blob in older)
    found = await fleet.audit()
    assert found["versions"] == log.view.run().version


def _behind_a_snapshot(log: History) -> bool:
    """Alpha is in mid-round on version 4, 5, 7, 8, ...; 3, 6, ... are kept as snapshots."""
    version, states = log.view.run().version, log.states("alpha")
    return version > 3 and version % 3 != 0 and states.count("leased") > 3 and "trained" in states
