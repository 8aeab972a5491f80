"""Blobs that the broker has lost for good, with real processes: what that costs, and what is said.

A loss is a purge of the blob's subjects, as a broken disk or a wrong hand would do it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from eventlog.events import CoordinatorElected, SiteDeparting, SiteJoined, SnapshotSaved
from leases.rows import Version
from ops.connect import opened
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.watched import History
from tests.system.conftest import MakeFleet

RARE = "snapshots.every_versions=100000"


async def lose(fleet: Fleet, blob: str, keep: Path) -> None:
    """Purge a blob, after a copy has been made."""
    async with opened(fleet.run, fleet.url) as (_, blobs, _):
        await blobs.get(blob, keep)
        await blobs.release([blob])
        assert not await blobs.has(blob)


def version(fleet: Fleet, number: int) -> Version:
    row = fleet.history.view.version(number)
    assert row is not None
    return row


def _merged(log: History, site: str) -> int:
    one = log.view.live_at(site)
    return one.merged_blocks if one is not None else 0


async def test_a_lost_update_costs_one_snapshot_and_nobody_leaves(
    make_fleet: MakeFleet, broker: Served, tmp_path: Path
) -> None:
    fleet = await make_fleet(broker, RARE, "outer.update_codec=fp32")
    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")
    assert fleet.history.of(SnapshotSaved) == []
    lost = version(fleet, 1).update_blob
    await lose(fleet, lost, tmp_path / "kept")
    fleet.site("beta")  # it begins at version 0 and cannot go on to 1
    await fleet.until(lambda log: _merged(log, "beta"), "a block of beta that is merged")
    ((_, saved),) = fleet.history.of(SnapshotSaved)[:1]
    assert lost[:12] in saved.reason and "starts from version" in saved.reason
    assert not fleet.history.of(SiteDeparting)
    assert len(fleet.history.of(SiteJoined, "site.beta")) == 1
    await fleet.finish()
    await fleet.audit("--deep")


async def test_a_coordinator_that_cannot_recover_says_what_is_lost_and_ends_with_3(
    make_fleet: MakeFleet, broker: Served, tmp_path: Path
) -> None:
    fleet = await make_fleet(broker, RARE, "outer.update_codec=fp32")
    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(lambda log: log.view.run().version >= 2, "version 2")
    fleet.kill("coordinator")
    view = fleet.history.view
    (delta,) = view.merged_in(version(fleet, 1).round)
    await lose(fleet, delta.blob, tmp_path / "kept")
    shutil.rmtree(fleet.home / "coordinators")  # another machine takes over
    before = fleet.history.last
    answer = await fleet.atoll("coordinate", fleet.run)
    assert answer.code == 3, answer
    *_, line = answer.err.strip().splitlines()
    for word in ("atoll: version", f"delta {delta.token[0]} of alpha", delta.blob, "mirror"):
        assert word in line, answer.err
    assert "Traceback" not in answer.err
    assert len(fleet.history.of(CoordinatorElected, after=before)) == 1
    async with opened(fleet.run, fleet.url) as (_, blobs, _):
        assert (await blobs.put(tmp_path / "kept")).digest == delta.blob
    fleet.coordinate("again")
    at = view.run().version
    await fleet.until(lambda log: log.view.run().version > at, "a version after the repair")
    await fleet.finish()
    await fleet.audit("--deep")
