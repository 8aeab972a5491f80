"""A site with valid credentials attacks a real run: it goes on, what the attacker wrote is void,
and neither broker nor coordinator grows without bound."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.node import node_settings
from broker.server import read_address
from ops.bench.resources import peak_gb
from tests.support.fleet import Fleet
from tests.support.forkserver import ForkServer
from tests.support.secured import Secured
from tests.support.secured_fleet import secured_fleet

ROOT = Path(__file__).parents[2]
ATTACK_S = 20.0
MOST_GB = 1.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    """As `atoll broker serve` runs it, with the guard."""
    made = Secured(tmp_path / "broker")
    command = [sys.executable, "-m", "ops", "broker", "serve", "--json", "--dir"]
    with (tmp_path / "broker.log").open("w") as log:
        served = subprocess.Popen(
            [*command, str(made.deployment.root)], cwd=ROOT, stdout=subprocess.PIPE, stderr=log
        )
        try:
            assert served.stdout is not None
            assert json.loads(served.stdout.readline())["pid"] > 0
            yield made
        finally:
            served.terminate()
            served.wait()


@pytest.fixture
async def fleet(
    broker: Secured, tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> AsyncIterator[Fleet]:
    sites = ("alpha", "beta", "hostile")
    async with secured_fleet(broker, sites, tmp_path, data, config, parents) as made:
        yield made


@contextlib.contextmanager
def attacked(broker: Secured, run: str) -> Iterator[None]:
    """All the attacks of `ops.bench.hostile_site`, by a process that is ended at the end."""
    file = broker.file("site", "hostile")
    command = [sys.executable, "-m", "ops.bench.hostile_site", str(file), run, "3600"]
    attacker = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
        assert attacker.poll() is None
    finally:
        attacker.kill()
        attacker.wait()


async def test_a_run_goes_on_beside_a_hostile_site(
    fleet: Fleet, broker: Secured, tmp_path: Path
) -> None:
    settings = node_settings(broker.deployment.root)
    assert settings is not None
    server = int(str((read_address(settings.store_dir) or {})["pid"]))
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 120.0)
    with attacked(broker, fleet.run):
        until = time.monotonic() + ATTACK_S
        said = tmp_path / "broker.log"
        await fleet.until(lambda _: "site-hostile floods" in said.read_text(), "the guard", 60.0)
        before = fleet.history.view.run().version
        await fleet.until(lambda log: log.view.run().version >= before + 2, "two versions", 120.0)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        coordinator = fleet.processes["coordinator"].pid
        assert 0 < peak_gb(server) < MOST_GB and 0 < peak_gb(coordinator) < MOST_GB
    entries = fleet.history.entries
    written = [one for one in entries if one.record.subject == "site.hostile"]
    assert len(written) > 100, "it was let in at first"
    void = {sequence for sequence, *_ in fleet.history.voids}
    assert all(one.envelope is None or one.record.sequence in void for one in written)
    names = {one.record.subject for one in entries}
    assert names == {"operator", "coordinator", "site.alpha", "site.beta", "site.hostile"}
    await fleet.audit()
    await fleet.finish()
