"""A server of three hangs for longer than a lease: whoever was on it goes to another in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eventlog.events import SiteDeparted
from tests.support.forkserver import ForkServer
from tests.support.secured import clustered
from tests.support.secured_fleet import secured_fleet
from tests.support.three import Leading

SITES = ("alpha", "beta")
LEASE_S, HUNG_S = 16.0, 24.0
PATIENCE_S = 180.0


@pytest.mark.soak
async def test_a_server_that_hangs_for_longer_than_a_lease_costs_nobody_his_place(
    tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> None:
    with clustered(tmp_path / "cluster") as cluster:
        made = secured_fleet(cluster, SITES, tmp_path, data, config, parents, f"lease_s={LEASE_S}")
        async with made as fleet, Leading.of(cluster, fleet.run) as leading:
            fleet.coordinate()
            for name in SITES:
                fleet.site(name)
            await fleet.until(lambda log: log.view.run().version >= 1, "version 1", PATIENCE_S)
            log = fleet.history
            for server in cluster.servers.values():  # whoever is on which: each has its turn
                await leading.whole()
                at = log.last
                thaw = fleet.suspend(server.pid)
                await asyncio.sleep(HUNG_S)  # how long it hangs is the fault
                thaw()
                back = log.last
                await fleet.until(
                    lambda log, back=back: (
                        {one.site for _, one in log.merged(back) if one.delta[0] > back}
                        == set(SITES)
                    ),
                    "work of both",
                    PATIENCE_S,
                )
                assert not log.of(SiteDeparted, after=at)
            await fleet.finish()
            await fleet.audit("--deep")
