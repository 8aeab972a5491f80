"""Real processes are killed and stopped at marked points of a round; the run goes on each time.

`make test` has what no other test of tests/system does: a coordinator and a broker that stop and
wake up. `make soak` has the whole matrix, with a broker of one server and with one of three, and
records it (docs/faults.md).
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import time
from pathlib import Path

import pytest

from tests.support.arena import COORDINATORS, EMPTIED, HEAD, POINTS, SURVIVOR, VICTIM, Arena, Fault
from tests.support.forkserver import CHECKOUT, ForkServer
from tests.support.secured import clustered
from tests.support.secured_fleet import secured_fleet
from tests.support.server import Served
from tests.support.three import Leading
from tests.system.conftest import MakeFleet

RESULTS = Path(os.environ.get("ATOLL_SOAK_RESULTS", CHECKOUT / "docs/results"))
PROCESSES = ("trainer", "hub", "coordinator", "broker")
SHORT_S, LONG_S = 1.0, 7.0  # within a lease, which is 4 s, and beyond it


async def test_a_coordinator_and_a_broker_that_stop_for_longer_than_a_lease_wake_up_harmless(
    own_broker: Served, make_fleet: MakeFleet
) -> None:
    fleet = await make_fleet(own_broker)
    async with Arena.of(fleet, own_broker) as arena:
        row = await arena.suffer(Fault("coordinator", "a round cut", LONG_S))
        assert "new term" in row.happened, "its standby took over"
        await arena.suffer(Fault("broker", "a delta announced", LONG_S))
        await _ends_well(arena)


@pytest.mark.soak
async def test_every_process_killed_and_stopped_at_every_point(
    tmp_path: Path, make_fleet: MakeFleet
) -> None:
    began, arenas = time.monotonic(), {}

    async def of_one(who: str) -> None:
        served = Served(tmp_path / f"store-{who}")
        served.start()
        try:
            fleet = await make_fleet(served)
            async with Arena.of(fleet, served) as arena:
                arenas[who] = arena
                for fault in _faults(who):
                    await arena.suffer(fault)
                await _ends_well(arena)
        finally:
            served.kill()

    for some in (PROCESSES[:2], PROCESSES[2:]):
        await asyncio.gather(*map(of_one, some))
    assert set(arenas) == set(PROCESSES)
    _write("faults.txt", "a real broker", list(arenas.values()), time.monotonic() - began)


@pytest.mark.soak
async def test_every_process_killed_and_stopped_at_every_point_with_three_servers(
    tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> None:
    """TLS, keys and three servers, whose leader is hurt, once so that it comes back with nothing.
    No fault begins before all three are current, as an operator would wait for that."""
    began, faults = (
        time.monotonic(),
        [one for who in (EMPTIED, *reversed(PROCESSES)) for one in _faults(who)],
    )
    with clustered(tmp_path / "cluster") as cluster:
        async with (
            secured_fleet(cluster, (SURVIVOR, VICTIM), tmp_path, data, config, parents) as fleet,
            Leading.of(cluster, fleet.run) as leading,
        ):
            for name in COORDINATORS:
                fleet.own[name] = {"ATOLL_CREDS": str(cluster.file("coordinator"))}
            async with Arena.of(fleet, leading, cluster.deployment.node("n1")) as arena:
                for fault in sorted(faults, key=lambda one: one.stop_s):
                    await leading.whole()
                    print((await arena.suffer(fault)).line(), flush=True)
                await leading.whole()
                await _ends_well(arena)
    assert len(arena.rows) == len(faults) > 80
    what = "three servers with TLS and keys, whose leader is hurt"
    _write("faults-three.txt", what, [arena], time.monotonic() - began)


def _faults(who: str) -> list[Fault]:
    """Everything that is done to one process."""
    times_s = (0.0,) if who == EMPTIED else (0.0, SHORT_S, LONG_S)
    return [
        Fault(who, point, stop_s)
        for stop_s in times_s
        for point in POINTS
        if (who, point) != ("trainer", "a join")  # it is the one that trains not
    ]


async def _ends_well(arena: Arena) -> None:
    await arena.fleet.finish()
    log = arena.fleet.history
    assert log.wrong_decisions() == []
    await arena.fleet.audit("--deep")


def _write(file: str, broker: str, arenas: list[Arena], seconds: float) -> None:
    lines = [
        f"`make soak`: tests/system/test_faults.py; real processes, {broker}, a lease of 4 s",
        "",
        f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        f"machine   {os.cpu_count()} cores, {platform.machine()}",
        f"seconds   {seconds:.0f}",
        "audits    after every fault; at the end of each run --deep, every version bit for bit",
        "",
        HEAD,
        *(row.line().rstrip() for arena in arenas for row in arena.rows),
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / file).write_text("\n".join(lines) + "\n")
