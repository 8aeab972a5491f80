"""Sites, coordinators and the broker are killed every few seconds for minutes; nothing is lost."""

from __future__ import annotations

import datetime
import os
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eventlog.events import (
    COORDINATOR,
    CoordinatorElected,
    LeaseStolen,
    RunFinished,
    SiteDeparted,
)
from eventlog.export import read_export
from tests.support.fleet import Fleet
from tests.support.forkserver import CHECKOUT
from tests.support.server import Served

SECONDS = float(os.environ.get("ATOLL_SOAK_S", "300"))
SEED = int(os.environ.get("ATOLL_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
RESULTS = Path(os.environ.get("ATOLL_SOAK_RESULTS", CHECKOUT / "docs/results"))
THREE = ("alpha", "beta", "gamma")
TWENTY = tuple(f"site-{number:02}" for number in range(1, 21))
COORDINATORS = ("first", "second")
PAUSE_S = (0.5, 6.0)  # between two faults; a lease is 4 s
MANY_PAUSE_S = (0.2, 2.0)  # where many are there to be killed
FROZEN_S = (0.5, 10.0)  # how long hub and trainer hang
LONG_OUTAGE_S = 25.0  # longer than any call waits for the broker
AWAY_S = (0.0, 8.0)  # how long a dead process stays away
MAY_BE_STARTED_AGAIN = (4, 75)  # no broker, and what a batch script requeues on
PATIENCE_S = 90.0  # within which, undisturbed, a run must go on


@dataclass(slots=True)
class Havoc:
    """What is killed and when, all from one seed. only_kills: nothing hangs."""

    fleet: Fleet
    broker: Served
    dice: random.Random
    sites: tuple[str, ...]
    only_kills: bool = False
    back_at: dict[str, float] = field(default_factory=dict)  # who is away, and until when
    frozen: dict[str, Callable[[], None]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    long_outage_at: float | None = None  # the first outage behind this one outlasts patience

    def strike(self) -> None:
        """One fault: a site, half of one, or one that hangs; a coordinator; the broker."""
        faults: dict[Callable[[], None], int] = {
            self._site: 4,
            self._hub: 2,
            self._trainer: 3,
            self._freeze: 0 if self.only_kills else 3,
            self._coordinator: 4,
            self._broker: 3,
        }
        self.dice.choices(list(faults), list(faults.values()))[0]()

    def bring_back(self, everyone: bool = False) -> None:
        """Start whoever has been away for long enough, or came while there was no broker."""
        now = time.monotonic()
        for name, process in list(self.fleet.processes.items()):
            if (code := process.poll()) is not None:
                assert code in MAY_BE_STARTED_AGAIN, (
                    f"{name} ended with {code}: {self.fleet.said()}"
                )
                del self.fleet.processes[name]
                self.back_at[name] = now
                self.killed[f"came in vain ({code})"] += 1
        for name in [name for name, at in self.back_at.items() if everyone or now >= at]:
            del self.back_at[name]
            if name in self.frozen:
                self.frozen.pop(name)()
            elif name in self.sites:
                self.fleet.site(name)
            else:
                self.fleet.coordinate(name)

    def _site(self) -> None:
        self._fell("site", self.sites, self.fleet.kill_site)

    def _hub(self) -> None:
        self._fell("hub", self.sites, self.fleet.kill)

    def _coordinator(self) -> None:
        self._fell("coordinator", COORDINATORS, self.fleet.kill)

    def _trainer(self) -> None:
        up = self._up(self.sites)
        if up and self.fleet.kill_trainer(self.dice.choice(up)):
            self.killed["trainer"] += 1

    def _broker(self) -> None:
        self.broker.kill()
        long = self.long_outage_at is not None and time.monotonic() > self.long_outage_at
        time.sleep(LONG_OUTAGE_S if long else self.dice.uniform(0.0, 1.0))
        self.broker.start()
        self.killed["broker for long" if long else "broker"] += 1
        self.long_outage_at = None if long else self.long_outage_at

    def _freeze(self) -> None:
        up = [name for name in self._up(self.sites) if self.fleet.living_trainer(name)]
        if up:
            name = self.dice.choice(up)
            self.frozen[name] = self.fleet.freeze(name)
            self.back_at[name] = time.monotonic() + self.dice.uniform(*FROZEN_S)
            self.killed["frozen site"] += 1

    def _up(self, names: tuple[str, ...]) -> list[str]:
        return [one for one in names if one in self.fleet.processes and one not in self.frozen]

    def _fell(self, what: str, names: tuple[str, ...], kill: Callable[[str], object]) -> None:
        up = self._up(names)
        if up:
            name = self.dice.choice(up)
            kill(name)
            self.back_at[name] = time.monotonic() + self.dice.uniform(*AWAY_S)
            self.killed[what] += 1


@pytest.mark.soak
@pytest.mark.settings("snapshots.every_versions=5")
async def test_minutes_of_random_faults_lose_nothing_and_stop_nothing(
    own_broker: Served, fleet: Fleet, tmp_path: Path
) -> None:
    havoc = Havoc(fleet, own_broker, random.Random(SEED), THREE)
    havoc.long_outage_at = time.monotonic() + SECONDS / 3
    await _minutes_of(havoc, PAUSE_S, tmp_path / "soak.atoll", "soak-spine.txt")
    assert havoc.killed["broker"] and havoc.killed["coordinator"] and havoc.killed["site"]


@pytest.mark.soak
@pytest.mark.settings("lease_s=8", "snapshots.every_versions=5", "inner.steps=32")
async def test_twenty_sites_of_which_all_processes_are_killed_at_random(
    own_broker: Served, fleet: Fleet, tmp_path: Path
) -> None:
    """All forked from one parent, on one machine. Hubs, trainers, coordinators and the broker."""
    havoc = Havoc(fleet, own_broker, random.Random(SEED), TWENTY, only_kills=True)
    await _minutes_of(havoc, MANY_PAUSE_S, tmp_path / "soak.atoll", "soak-twenty.txt")
    assert all(havoc.killed[what] for what in ("hub", "trainer", "coordinator", "broker"))


async def _minutes_of(havoc: Havoc, pauses_s: tuple[float, float], file: Path, result: str) -> None:
    """Strike at random until the time is over, then let everyone come back and the run go on."""
    fleet, dice, began = havoc.fleet, havoc.dice, time.monotonic()
    print(f"seed {SEED}: to see these faults again, set ATOLL_SOAK_SEED={SEED}", file=sys.stderr)
    fleet.leaving.update(havoc.sites, COORDINATORS)
    for name in COORDINATORS:
        fleet.coordinate(name)
    for name in havoc.sites:
        fleet.site(name)
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", PATIENCE_S)
    acknowledged: list[bytes] = []
    while time.monotonic() - began < SECONDS:
        pause_s = dice.uniform(*pauses_s)
        until, at_a_cut = time.monotonic() + pause_s, dice.random() < 0.4
        await fleet.until(
            lambda log, at=until, cut=at_a_cut: (
                time.monotonic() >= at + 2 * cut
                or (cut and time.monotonic() >= at and log.view.round_is_cut())
            ),
            "the next fault",
            60,
        )
        havoc.bring_back()
        acknowledged = [entry.record.payload for entry in fleet.history.entries]
        if fleet.history.view.round_is_cut():
            havoc.killed["fault between cut and commit"] += 1
        havoc.strike()
    havoc.bring_back(everyone=True)
    fleet.leaving.clear()
    calm = fleet.history.last
    await fleet.until(lambda log: log.new_versions(calm) >= 5, "five calm rounds", PATIENCE_S)
    await fleet.until(
        lambda log: all(log.view.live_at(name) for name in havoc.sites), "all sites", PATIENCE_S
    )
    seconds = time.monotonic() - began
    await fleet.finish()

    log = fleet.history
    assert (await fleet.atoll("log", "export", fleet.run, "-o", str(file))).code == 0
    kept = [record.payload for record in read_export(file)]
    assert kept[: len(acknowledged)] == acknowledged
    found = await fleet.audit("--deep")
    _, end = log.of(RunFinished)[0]
    assert found["model_digest"] == end.parameters_digest
    overtaken = {kind for at, kind, _ in log.voids if log.source(at) == COORDINATOR}
    assert overtaken <= {LeaseStolen.type}, "only a start can be faster than a decision"
    _write(havoc, seconds, found, RESULTS / result)


def _write(havoc: Havoc, seconds: float, found: dict[str, object], result: Path) -> None:
    log = havoc.fleet.history
    departures = Counter(gone.code for _, gone in log.of(SiteDeparted))
    figures = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "seed": SEED,
        "sites": len(havoc.sites),
        "seconds": round(seconds),
        "killed": ", ".join(f"{num} × {what}" for what, num in sorted(havoc.killed.items())),
        "departures": ", ".join(f"{num} × {code}" for code, num in sorted(departures.items())),
        "terms": len(log.of(CoordinatorElected)),
        "events": log.last,
        "void events": len(log.voids),
        "versions": log.view.run().version,
        "tokens merged": log.view.run().merged_tokens,
        "blocks granted": found["blocks_granted"],
        "blocks reclaimed": found["blocks_reclaimed"],
        "deep audit": "holds: every version recomputed bit for bit",
    }
    result.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{name:17} {value}\n" for name, value in figures.items())
    result.write_text("`make soak`: random faults, tests/system/test_soak.py\n\n" + text)
