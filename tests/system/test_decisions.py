"""A coordinator is SIGKILLed right before and right after each type of decision it takes.

"Before": the event has left the process and has not reached the broker. "After": the broker has
stored it and the acknowledgement is lost. A standby goes on each time, the killed one comes back as
the standby of that, and the audit recomputes every version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import pytest

from eventlog.codec import event_id
from eventlog.events import (
    COORDINATOR,
    EVENTS,
    BlobsReleased,
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
from tests.support.poisoned import poisoned
from tests.support.server import Served
from tests.support.tap import Tap, Trap, event, tapped
from tests.support.watched import History
from tests.system.conftest import MakeFleet

NAMES = ("first", "second")
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
Moment = Literal["before", "after"]
Provoke = Callable[[Fleet], Awaitable[None]]


@dataclass(slots=True)
class Killings:
    """Two coordinators of one run, each behind a tap of its own, and what was done to them."""

    fleet: Fleet
    taps: dict[str, Tap]
    ids: dict[Moment, list[str]] = field(default_factory=lambda: {"before": [], "after": []})
    done: Counter[tuple[type[Event], Moment]] = field(default_factory=Counter)

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, fleet: Fleet) -> AsyncIterator[Killings]:
        async with AsyncExitStack() as stack:
            taps = {name: await stack.enter_async_context(tapped(fleet.url)) for name in NAMES}
            for name, tap in taps.items():
                fleet.routes[name] = tap.url
                fleet.coordinate(name)
            fleet.leaving.update(NAMES)
            yield cls(fleet, taps)

    async def kill(
        self,
        kind: type[Event],
        when: Moment,
        provoke: Provoke | None = None,
        calm: Provoke | None = None,
    ) -> None:
        """Kill whoever decides so next; then the run goes on without it, and it comes back."""
        fleet, killed = self.fleet, []
        before = self._num_terms()
        traps = {
            name: tap.set(Trap(event(kind.type, COORDINATOR), when, self._killer(name, killed)))
            for name, tap in self.taps.items()
        }
        if provoke is not None:
            await provoke(fleet)
        await fleet.until(lambda _: killed, f"{kind.type} to be decided", 60)
        for tap in self.taps.values():
            tap.clear()
        caught = traps[killed[0]].caught
        assert caught is not None
        self.ids[when].append(event_id(caught.payload))
        fleet.coordinate(killed[0])
        if calm is not None:
            await calm(fleet)
        if kind is RunFinished:
            return
        await fleet.until(lambda _: self._num_terms() > before, f"a term after {kind.type}", 30)
        at = fleet.history.of(CoordinatorElected)[-1][0]
        await fleet.until(
            lambda log: log.new_versions(at) >= 1, f"a version after {when} {kind.type}", 60
        )
        self.done[kind, when] += 1

    def agrees_with(self, log: History) -> None:
        """What was lost on its way is nowhere; what was stored is there once, and counts."""
        found = Counter(entry.envelope.id for entry in log.entries if entry.envelope is not None)
        assert [found[name] for name in self.ids["before"]] == [0] * len(self.ids["before"])
        assert [found[name] for name in self.ids["after"]] == [1] * len(self.ids["after"])
        assert [void for void in log.voids if log.source(void[0]) == COORDINATOR] == []

    def _num_terms(self) -> int:
        return len(self.fleet.history.of(CoordinatorElected))

    def _killer(self, name: str, killed: list[str]) -> Callable[[], None]:
        def kill() -> None:
            self.fleet.kill(name)
            killed.append(name)

        return kill


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
    asyncio.get_running_loop().call_later(6.0, thaw)


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
                for when in ("before", "after"):
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
            for when in ("before", "after"):
                await killings.kill(kind, when, provoked.get(kind))
        assert [answer.code for answer in await asyncio.gather(*twins)] == [75, 75]
        stopped = await fleet.atoll("run", "stop", fleet.run)
        assert stopped.code == 0
        await killings.kill(RunFinished, "before")
        await killings.kill(RunFinished, "after")
        fleet.leaving.clear()
        for name in list(fleet.processes):
            assert await fleet.ended(name) == 0, fleet.said()
        killings.agrees_with(fleet.history)
        await fleet.audit("--deep")


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
            for when in ("before", "after"):
                await killings.kill(kind, when)
        poison.off()
        for when in ("before", "after"):
            await killings.kill(BlobsReleased, when)

        async def nobody_else_is_there(fleet: Fleet) -> None:
            fleet.signal("alpha", signal.SIGTERM)
            await fleet.ended("alpha")
            poison.on()

        async def alpha_is_back(fleet: Fleet) -> None:
            poison.off()
            fleet.site("alpha")

        for when in ("before", "after"):
            await killings.kill(BlockQuarantined, when, nobody_else_is_there, alpha_is_back)
        await _end(killings)
