"""A compute node that reaches its login node and nothing else takes part through a leaf node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.credentials import Credentials
from broker.leaf import Leaf
from broker.node import node_settings
from broker.server import BrokerServer
from eventlog.events import DeltaPublished, SiteDeparted
from tests.support.forkserver import ForkServer
from tests.support.netns import network
from tests.support.secured import Secured, free_ports, secured
from tests.support.secured_fleet import secured_fleet


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    """It listens on this machine's loopback, where no other namespace comes."""
    with secured(tmp_path / "broker", leaves=True) as made:
        yield made


async def test_a_site_trains_through_its_login_node_and_an_outage_of_that_loses_nothing(
    broker: Secured, tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> None:
    with network() as cable:
        async with secured_fleet(
            broker, ["alpha"], tmp_path, data, config, parents, leaf=True
        ) as fleet:
            direct = broker.file("site", "alpha")
            fleet.networks["lost"] = fleet.networks["alpha"] = cable.name
            fleet.own["lost"] = {"ATOLL_CREDS": str(direct)}
            port, monitor_port = free_ports(2)
            leaf = Leaf(cable.host, port, monitor_port, broker.deployment.shape.leaf_port)
            jobs = leaf.write(tmp_path / "leaf", Credentials.read(direct))
            settings = node_settings(tmp_path / "leaf")
            assert settings is not None
            server = BrokerServer(settings, die_with_parent=True)
            fleet.own["alpha"] = {"ATOLL_CREDS": str(jobs)}
            fleet.routes["alpha"] = Credentials.read(jobs).urls
            fleet.coordinate()
            fleet.leaving.add("lost")
            fleet.start("lost", "site", "run", fleet.run, "alpha", "--data", str(data))
            assert await fleet.ended("lost", 60) == 4, "it has no route to the broker"
            with server:
                fleet.site("alpha")
                await fleet.until(lambda log: log.view.run().version >= 2, "two versions", 120)
                at = fleet.history.last
                server.kill()
                await asyncio.sleep(1.0)
                server.start()
                await fleet.until(lambda log: log.new_versions(at) >= 2, "two more", 120)
                await fleet.finish()
            left = [(one.site, one.code) for _, one in fleet.history.of(SiteDeparted)]
            assert left == [("alpha", "drained")]
            assert fleet.history.of(DeltaPublished, "site.alpha")
            found = await fleet.audit("--deep")
            assert found["ok"] and found["signatures"] > 0
