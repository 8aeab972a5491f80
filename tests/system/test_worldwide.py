"""The demo's run across networks: a broker with TLS and keys, three sites on thin links, 100 ms
away, each a process as an operator starts it; one is cut off for longer than its lease."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
import re
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.credentials import Credentials
from eventlog.events import SiteAdmitted, SiteDeparted
from tests.support.fleet import Fleet
from tests.support.forkserver import CHECKOUT, ForkServer
from tests.support.watched import History
from tests.support.world import BROKER, HOST, World, worldwide

RESULTS = Path(os.environ.get("ATOLL_SOAK_RESULTS", CHECKOUT / "docs/results"))
ALPHA, CUT, LATE = "alpha", "beta", "gamma"
SITES = (ALPHA, CUT, LATE)
ROUND_TRIP_S = 0.1
KBIT_PER_S = 20_000
LEASE_S = 10  # the demo's 4 s are for one machine: here each process starts and loads by itself
RUN = "demo"
ATOLL = (sys.executable, "-m", "ops")
PATIENCE_S, END_S = 300.0, 900.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with worldwide(tmp_path, SITES, ROUND_TRIP_S / 2, KBIT_PER_S) as made:
        yield made


async def serve(world: World) -> None:
    """What an operator types at the broker, with the demo's data beside it."""
    log = world.folder / "broker.log"
    tell = partial(world.atoll, BROKER)
    await tell("broker", "config", "broker", "--host", HOST, "--websocket-port", "0")
    world.start(BROKER, [*ATOLL, "broker", "serve", "--dir", "broker"], log)
    until = time.monotonic() + PATIENCE_S
    while "tls://" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        await asyncio.sleep(0.1)
    for name in SITES:
        await tell("broker", "add-site", name, "--dir", "broker")
    (world.folder / "keys").write_text(await tell("broker", "keys", "--dir", "broker"))
    await tell("data", "build", "--stdlib", "--subset", "7", "--heldout-every", "19", "tokens")


def credentials(world: World, role: str, name: str = "main") -> Path:
    return world.folder / "broker" / "credentials" / f"{role}-{name}.creds"


async def created(world: World, parents: tuple[str, ForkServer]) -> Fleet:
    """The demo's configuration as a run; the coordinator and `atoll watch` are at the broker."""
    demo = CHECKOUT / "ops" / "configs" / "demo.toml"
    operator = credentials(world, "operator")
    create = ["run", "create", str(demo), "--data", "tokens", "--keys", "keys"]
    create += ["--set", f"lease_s={LEASE_S}"]
    await world.atoll(BROKER, *create, ATOLL_CREDS=str(operator))
    folder = world.folder
    fleet = Fleet(folder / "machine", world.url, folder / "tokens", demo, RUN, *parents)
    fleet.own_interpreters = True
    fleet.variables = {"ATOLL_CREDS": str(operator)}
    ours = Credentials.read(operator).urls
    places = {"coordinator": BROKER, "watch": BROKER, **{name: name for name in SITES}}
    fleet.networks = {name: world.places[place].name for name, place in places.items()}
    fleet.routes = dict.fromkeys(places, ours)
    files = {"coordinator": credentials(world, "coordinator")}
    files |= {name: credentials(world, "site", name) for name in SITES}
    fleet.own = {name: {"ATOLL_CREDS": str(file)} for name, file in files.items()}
    for name in SITES:  # what a site keeps is on a disk of its own
        fleet.own[name]["ATOLL_HOME"] = str(folder / f"home-{name}")
    return fleet


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
async def test_the_demos_run_over_three_far_networks_of_which_one_is_cut_off_and_comes_back(
    world: World, parents: tuple[str, ForkServer], whole: bool
) -> None:
    """The whole of it, or until the one that was cut off has had its part again."""
    began = time.monotonic()
    await serve(world)
    fleet = await created(world, parents)
    operator = Credentials.read(credentials(world, "operator"))
    try:
        async with History.watched(world.url, RUN, operator) as fleet.history:
            fleet.start("watch", "watch", RUN)
            fleet.coordinate()
            for name in (ALPHA, CUT):
                fleet.site(name, "--threads", "1")
            far_s = await _round_trip_s(world)
            assert far_s >= ROUND_TRIP_S, far_s
            await fleet.until(lambda log: log.view.run().version >= 1, "version 1", PATIENCE_S)
            fleet.site(LATE, "--threads", "1")
            away_s = await _cut_off(fleet, world)
            if not whole:
                assert (await fleet.atoll("run", "stop", RUN)).code == 0
            await fleet.until(lambda log: log.view.run().state == "finished", "the end", END_S)
            for name in list(fleet.processes):
                assert await fleet.ended(name, 60) == 0, fleet.said()
            await _judged(fleet, world)
            if whole:
                _write(fleet, time.monotonic() - began, far_s, away_s)
    finally:
        fleet.close()


async def _round_trip_s(world: World) -> float:
    """As `atoll doctor` measures it from a site."""
    creds = str(credentials(world, "site", ALPHA))
    found = json.loads(await world.atoll(ALPHA, "doctor", RUN, "--creds", creds, "--json"))
    measured = [one["measured"] or {} for one in found["findings"]]
    return float(next(one["round_trip_s"] for one in measured if "round_trip_s" in one))


async def _cut_off(fleet: Fleet, world: World) -> float:
    """The cable is out until the others have gone on without it; for how long, in seconds."""
    await fleet.until(
        lambda log: "training" in log.states(CUT) and log.view.live_at(LATE),
        "all three at work",
        PATIENCE_S,
    )
    log, at, cut = fleet.history, fleet.history.last, time.monotonic()
    world.places[CUT].cut()
    await fleet.until(lambda _: _departures(fleet, at), "its departure", PATIENCE_S)
    gone = _departures(fleet, at)[0][0]
    shown = json.loads(
        await world.atoll(
            BROKER, "watch", RUN, "--once", "--json",
            ATOLL_CREDS=str(credentials(world, "operator")),
        )
    )  # fmt: skip
    states = {one["site"]: one["state"] for one in shown["sites"]}
    assert states[CUT] == "departed" and states[ALPHA] != "departed", states
    await fleet.until(lambda _: log.new_versions(gone) >= 1, "a version without it", PATIENCE_S)
    mended = log.last
    world.places[CUT].mend()
    away_s = time.monotonic() - cut
    await fleet.until(
        lambda _: any(c.site == CUT and c.delta[0] > mended for _, c in log.merged(mended)),
        "its part again",
        PATIENCE_S,
    )
    assert CUT in [one.site for _, one in log.of(SiteAdmitted, after=mended)]
    return away_s


def _departures(fleet: Fleet, after: int) -> list[tuple[int, SiteDeparted]]:
    """Of the site that is cut off."""
    found = fleet.history.of(SiteDeparted, after=after)
    return [(at, one) for at, one in found if (one.site, one.code) == (CUT, "lost")]


async def _judged(fleet: Fleet, world: World) -> None:
    """Audit, report, replay and the live view, all of them after the fact by the log alone."""
    found = await fleet.audit("--deep")
    assert found["deep"]["ok"] and found["signatures"] > 0
    await world.atoll(
        BROKER, "log", "export", RUN, "-o", "demo.atoll",
        ATOLL_CREDS=str(credentials(world, "operator")),
    )  # fmt: skip
    await world.atoll(ALPHA, "report", "demo.atoll", "-o", "demo.html")
    lives = _lives(world.folder / "demo.html", CUT)
    left_s = next(life["left_s"] for life in lives if life["code"] == "lost")
    assert lives[0]["came_s"] < left_s < lives[-1]["came_s"]
    replayed = await world.atoll(ALPHA, "watch", "demo.atoll", "--replay", "--speed", "1000")
    for told in (replayed, fleet.log_of("watch").read_text()):
        departed, back = told.index(f"departed {CUT} (lost)"), told.rindex(f"admitted {CUT}")
        assert told.index(f"admitted {CUT}") < departed < back
        assert told.index("finished the run") > back


def _lives(page: Path, site: str) -> list[dict[str, Any]]:
    """A site's incarnations, as the data in a report say."""
    (facts,) = re.findall(r'id="facts">(.*?)</script>', page.read_text())
    return [life for life in json.loads(facts)["lives"] if life["site"] == site]


def _write(fleet: Fleet, seconds: float, far_s: float, away_s: float) -> None:
    log = fleet.history
    departures = [f"{one.site} ({one.code})" for _, one in log.of(SiteDeparted)]
    figures = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "networks": f"a broker and three sites, {KBIT_PER_S} kbit/s each way, TLS and keys",
        "round trip": f"{far_s * 1e3:.0f} ms, as `atoll doctor` measures at a site",
        "seconds": round(seconds),
        "cut off": f"{CUT} for {away_s:.1f} s; a lease is {LEASE_S} s",
        "departures": ", ".join(departures),
        "versions": log.view.run().version,
        "tokens merged": log.view.run().merged_tokens,
        "audit": "holds, --deep: every version bit for bit; report and views show both moves",
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    head = "`make soak`: tests/system/test_worldwide.py, the demo's run\n\n"
    (RESULTS / "worldwide.txt").write_text(
        head + "".join(f"{name:14} {value}\n" for name, value in figures.items())
    )
