"""A coordinator is SIGKILLed right before and right after each type of decision it takes.

"Before": the event has left the process and has not reached the broker. "After": the broker has
stored it and the acknowledgement is lost. A standby goes on each time, the killed one comes back as
the standby of that, and the audit recomputes every version.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from pathlib import Path

import pytest

from eventlog.events import (
    COORDINATOR,
    EVENTS,
    BlobsReleased,
    BlockCompleted,
    BlockQuarantined,
    CoordinatorElected,
    CoordinatorTick,
    DeltaRefused,
    EpochClosed,
    Event,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    RunFinished,
    RunPaused,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
    SnapshotSaved,
)
from tests.support.arena import leader
from tests.support.fleet import Fleet
from tests.support.forkserver import CHECKOUT
from tests.support.killings import MOMENTS, Killings, Provoke
from tests.support.poisoned import poisoned
from tests.support.server import Served
from tests.system.conftest import MakeFleet

RESULTS = Path(os.environ.get("ATOLL_SOAK_RESULTS", CHECKOUT / "docs/results"))
NATURAL: tuple[type[Event], ...] = (
    CoordinatorTick,
    RoundOpened,
    LeaseGranted,
    RoundClosed,
    RoundCommitted,
    EpochClosed,
    SnapshotSaved,
)
PROVOKED: tuple[type[Event], ...] = (
    CoordinatorElected,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
    LeaseStolen,
)
OF_REFUSALS: tuple[type[Event], ...] = (DeltaRefused, LeaseReclaimed)
FROZEN_S = 6.0  # longer than a lease: its blocks are taken from it
_lines: list[str] = []


async def _begin(fleet: Fleet, *sites: str) -> None:
    for name in sites:
        fleet.site(name)
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)


async def _end(killings: Killings) -> None:
    await killings.fleet.finish()
    killings.agrees_with(killings.fleet.history)
    await killings.fleet.audit("--deep")


# -- what brings a decision about -----------------------------------------------------------------


async def _a_site_comes_back(fleet: Fleet) -> None:
    """Gamma dies and is started again: departed (replaced), then admitted."""
    if "gamma" in fleet.processes:
        fleet.kill_site("gamma")
    fleet.site("gamma")


async def _the_leader_dies(fleet: Fleet) -> None:
    name = leader(fleet)
    fleet.kill(name)
    fleet.coordinate(name)


async def _a_holder_hangs(fleet: Fleet) -> None:
    """Gamma's trainer stops in mid-round with blocks unbegun, until they are taken from it."""
    await fleet.until(
        lambda log: "training" in log.states("gamma") and log.states("gamma").count("leased") > 3,
        "gamma with blocks ahead",
        60,
    )
    thaw = fleet.suspend(fleet.living_trainer("gamma"))
    asyncio.get_running_loop().call_later(FROZEN_S, thaw)


async def _trains_again(fleet: Fleet, name: str) -> None:
    """What has hung is thawed, or was ended by its hub and has come back: one that asks to be
    admitted while the run is being stopped is refused, rightly."""
    await asyncio.sleep(FROZEN_S)
    last = fleet.history.last
    await fleet.until(
        lambda log: log.of(BlockCompleted, f"site.{name}", after=last), f"{name} to train", 60
    )


# -- tests ----------------------------------------------------------------------------------------


def test_every_type_of_decision_is_among_those_that_are_killed_at() -> None:
    """A pause is a decision that the coordinator may take and this one never does."""
    killed_at = {*NATURAL, *PROVOKED, *OF_REFUSALS, BlobsReleased, BlockQuarantined, RunFinished}
    assert killed_at | {RunPaused} == {one for one in EVENTS.values() if COORDINATOR in one.by}


async def test_two_runs_on_one_broker_whose_coordinators_die_at_decisions_do_not_meet(
    broker: Served, make_fleet: MakeFleet
) -> None:
    """Four types before and after; the rest in `make soak`."""
    kinds = ((LeaseGranted, RoundClosed), (RoundCommitted, SiteAdmitted))
    fleets = [await make_fleet(broker) for _ in kinds]

    async def one(fleet: Fleet, some: tuple[type[Event], ...]) -> Killings:
        async with Killings.of(fleet) as killings:
            await _begin(fleet, "alpha")
            for kind in some:
                for when in MOMENTS:
                    provoke = _a_site_comes_back if kind is SiteAdmitted else None
                    await killings.kill(kind, when, provoke)
            await _end(killings)
            return killings

    done = await asyncio.gather(*map(one, fleets, kinds))
    for killings, other in zip(done, reversed(done), strict=True):
        mine, theirs = killings.fleet.history, other.fleet.history
        assert {entry.envelope.run for entry in mine.entries if entry.envelope} == {
            killings.fleet.run
        }
        assert not {e.record.payload for e in mine.entries} & {
            e.record.payload for e in theirs.entries
        }


@pytest.mark.soak
async def test_a_kill_at_every_type_of_decision_of_a_run_whose_sites_are_well(
    broker: Served, make_fleet: MakeFleet
) -> None:
    fleet = await make_fleet(broker, "data.block_sequences=16", "snapshots.every_versions=2")
    async with Killings.of(fleet) as killings:
        await _begin(fleet, "alpha", "gamma")
        twins: list[asyncio.Task[object]] = []

        async def a_twin_comes(fleet: Fleet) -> None:
            alpha = ("site", "run", fleet.run, "alpha", "--data", str(fleet.data))
            home = str(fleet.root / f"twin-{len(twins)}")
            twins.append(asyncio.create_task(fleet.atoll(*alpha, ATOLL_HOME=home)))

        provoked: dict[type[Event], Provoke] = {
            CoordinatorElected: _the_leader_dies,
            SiteAdmitted: _a_site_comes_back,
            SiteDeparted: _a_site_comes_back,
            SiteRefused: a_twin_comes,
            LeaseStolen: _a_holder_hangs,
        }
        assert set(provoked) == set(PROVOKED)
        for kind in (*NATURAL, *PROVOKED):
            for when in MOMENTS:
                await killings.kill(kind, when, provoked.get(kind))
        assert [answer.code for answer in await asyncio.gather(*twins)] == [75, 75]
        await _trains_again(fleet, "gamma")
        stopped = await fleet.atoll("run", "stop", fleet.run)
        assert stopped.code == 0
        await killings.kill(RunFinished, "before")
        await killings.kill(RunFinished, "after")
        fleet.leaving.clear()
        for name in list(fleet.processes):
            assert await fleet.ended(name) == 0, fleet.said()
        killings.agrees_with(fleet.history)
        found = await fleet.audit("--deep")
        assert found["versions"] == fleet.history.view.run().version
        _record(killings)


@pytest.mark.soak
async def test_a_kill_at_every_type_of_decision_about_deltas_that_are_refused(
    broker: Served, make_fleet: MakeFleet
) -> None:
    """Evil's deltas are not finite while told so: they are refused, it is departed or its blocks
    are set aside. Its deadline is short, so that it holds more blocks than it delivers."""
    fleet = await make_fleet(
        broker,
        "rounds.deadline_s=6",
        "rounds.grace_s=0",
        "inner.steps=4000",
        "limits.refusals=1000",
        "limits.quarantine=2",
        "snapshots.every_versions=1",
        "snapshots.retention=recovery",
    )
    async with Killings.of(fleet) as killings, poisoned(fleet, "evil") as poison:
        await _begin(fleet, "alpha")
        poison.on()
        for kind in OF_REFUSALS:
            for when in MOMENTS:
                await killings.kill(kind, when)
        poison.off()
        for when in MOMENTS:
            await killings.kill(BlobsReleased, when)

        async def nobody_else_is_there(fleet: Fleet) -> None:
            fleet.signal("alpha", signal.SIGTERM)
            await fleet.ended("alpha")
            poison.on()

        async def alpha_is_back(fleet: Fleet) -> None:
            poison.off()
            fleet.site("alpha")

        for when in MOMENTS:
            await killings.kill(BlockQuarantined, when, nobody_else_is_there, alpha_is_back)
        await _end(killings)
        assert fleet.history.of(BlockQuarantined)
        _record(killings)


def _record(killings: Killings) -> None:
    """The table of both soaks, as far as they have run."""
    _lines.extend(killings.lines)
    head = [
        "`make soak`: tests/system/test_decisions.py; a coordinator killed right before and right",
        "after its decision reached the broker. Each run's audit --deep holds at its end.",
        "",
        f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        "",
        f"{'decision':22} {'killed':24} versions",
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "decisions.txt").write_text("\n".join([*head, *_lines]) + "\n")
