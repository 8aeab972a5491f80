"""The SSH recipe of docs/deploy.md: a site that reaches a gateway by ssh, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import SiteDeparted
from tests.support.forkserver import CHECKOUT, ForkServer
from tests.support.gateway import gateway
from tests.support.netns import inside, network
from tests.support.secured import Secured, secured
from tests.support.secured_fleet import secured_fleet

BROKER = "127.0.0.2"  # the gateway reaches it; the site's node does not, and calls it localhost
LISTENS = "until </dev/tcp/localhost/4222; do sleep 0.1; done"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "broker", host=BROKER) as made:
        yield made


def recipe() -> list[str]:
    """The command of docs/deploy.md."""
    text = (CHECKOUT / "docs" / "deploy.md").read_text()
    (line,) = [one for one in text.split("`") if one.startswith("ssh ")]
    assert "`--broker tls://localhost:4222`" in text
    return line.split()


async def test_a_site_trains_through_an_ssh_tunnel_and_an_end_of_that_loses_nothing(
    broker: Secured, tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> None:
    port = str(broker.deployment.shape.port)
    ssh, *words = (one.replace("broker.example.org:4222", f"{BROKER}:{port}") for one in recipe())
    with network() as cable, gateway(tmp_path / "gateway", cable.host) as known:

        def tunnel() -> subprocess.Popen[bytes]:
            command = [*inside(cable.name), ssh, "-F", str(known), *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            listens = [
                *inside(cable.name),
                "bash",
                "-c",
                "until </dev/tcp/localhost/4222; do sleep 0.1; done",
            ]
            subprocess.run(listens, check=True, capture_output=True, timeout=60)
            return process

        async with secured_fleet(
            broker, ["alpha"], tmp_path, data, config, parents, "lease_s=8"
        ) as fleet:
            file = str(broker.file("site", "alpha"))
            fleet.networks = dict.fromkeys(("lost", "alpha"), cable.name)
            fleet.own["lost"] = {"ATOLL_CREDS": file}
            fleet.routes["lost"] = broker.credentials("site", "alpha").urls
            fleet.routes["alpha"] = ""
            fleet.coordinate()
            fleet.leaving.add("lost")
            fleet.start("lost", "site", "run", fleet.run, "alpha", "--data", str(data))
            assert await fleet.ended("lost", 120) == 4, "without a tunnel it has no route"
            running = tunnel()
            try:
                fleet.site("alpha", "--broker", "tls://localhost:4222", "--creds", file)
                await fleet.until(lambda log: log.view.run().version >= 2, "two versions", 120)
                at = fleet.history.last
                os.kill(running.pid, signal.SIGKILL)
                running.wait()
                running = tunnel()
                await fleet.until(lambda log: log.new_versions(at) >= 2, "two more", 120)
                await fleet.finish()
            finally:
                running.kill()
                running.wait()
            left = [(one.site, one.code) for _, one in fleet.history.of(SiteDeparted)]
            assert left == [("alpha", "drained")]
            assert (await fleet.audit("--deep"))["signatures"] > 0
