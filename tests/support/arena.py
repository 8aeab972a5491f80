"""A run to be hurt: two coordinators, two sites, everything behind taps, and a table of outcomes.

A `Fault` happens to one process in the moment that a marked message passes, and is over some time
later. `Arena.suffer` waits until the run has gone on behind it, and has the run audited.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.events import CoordinatorElected, SiteAdmitted, SiteDeparted
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.tap import Published, Tap, Trap, chunk, event, tapped
from tests.support.three import Leading
from tests.support.watched import History

EMPTIED = "broker, then emptied,"  # killed, and started again with nothing but its configuration
COORDINATORS, SURVIVOR, VICTIM = ("first", "second"), "alpha", "beta"
BROKER_AWAY_S = 0.5
PATIENCE_S = 180.0  # bounds a wait; on an idle machine seconds do

# Where in the life of a round it happens: whose tap sees it, and what it waits for there.
POINTS: dict[str, tuple[str, Callable[[Published], bool]]] = {
    "a join": (VICTIM, event("site.joined", f"site.{VICTIM}")),
    "a block begun": (VICTIM, event("block.started", f"site.{VICTIM}")),
    "a delta on its way": (VICTIM, chunk),
    "a delta announced": (VICTIM, event("delta.published", f"site.{VICTIM}")),
    "a round cut": ("coordinators", event("round.closed")),
    "an update on its way": ("coordinators", chunk),
    "a version committed": ("coordinators", event("round.committed")),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to whom, and at which point. stop_s: 0 for SIGKILL, else how long a SIGSTOP
    lasts until the SIGCONT."""

    who: str
    point: str
    stop_s: float = 0.0

    @property
    def what(self) -> str:
        return f"stopped for {self.stop_s:g} s" if self.stop_s else "killed"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table of outcomes."""

    fault: str
    point: str
    happened: str
    before: int
    after: int
    audit: str

    def line(self) -> str:
        versions = f"{self.before:>4} -> {self.after:<4}"
        return f"{self.fault:32} {self.point:22} {versions} {self.audit:6} {self.happened}"


HEAD = f"{'fault':32} {'point':22} {'versions':>12} {'audit':6} what happened"


@dataclass(slots=True)
class Arena:
    """`lost_after_s`: a site that is silent for longer is departed."""

    fleet: Fleet
    broker: Served | Leading
    taps: dict[str, Tap]
    lost_after_s: float = 4.0
    rows: list[Row] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, fleet: Fleet, broker: Served | Leading, node: Path | None = None
    ) -> AsyncIterator[Arena]:
        """Starts everything, and waits for the first version. `node`: the folder of a server, where
        the broker speaks TLS."""
        async with AsyncExitStack() as stack:
            taps = {
                name: await stack.enter_async_context(tapped(fleet.url, node=node))
                for name in ("coordinators", VICTIM)
            }
            fleet.routes |= dict.fromkeys(COORDINATORS, taps["coordinators"].url)
            fleet.routes[VICTIM] = taps[VICTIM].url
            for name in COORDINATORS:
                fleet.coordinate(name)
            for name in (SURVIVOR, VICTIM):
                fleet.site(name)
            await fleet.until(lambda log: log.view.run().version >= 1, "version 1", PATIENCE_S)
            yield cls(fleet, broker, taps)

    async def suffer(self, fault: Fault) -> Row:
        """One fault, and what became of it. The run must have gone on, with both sites, and the
        audit must hold."""
        fleet, log = self.fleet, self.fleet.history
        at, version = log.last, log.view.run().version
        heal = await self._strike(fault)
        if fault.stop_s:
            await asyncio.sleep(fault.stop_s)  # how long it lasts is the fault
        heal()
        healed = log.last
        await fleet.until(
            lambda _: log.new_versions(healed) >= 2 and _merged(log, healed) >= {SURVIVOR, VICTIM},
            f"both to go on after {fault}",
            PATIENCE_S,
        )
        codes = [(one.site, one.code) for _, one in log.of(SiteDeparted, after=at)]
        self._judge(fault, codes)
        await fleet.audit()
        terms = len(log.of(CoordinatorElected, after=at))
        row = Row(
            f"{fault.who} {fault.what}",
            fault.point,
            _words(codes, len(log.of(SiteAdmitted, after=at)), terms),
            version,
            log.view.run().version,
            "holds",
        )
        self.rows.append(row)
        return row

    async def _strike(self, fault: Fault) -> Callable[[], None]:
        """Let the fault happen at its point; what returns ends it."""
        fleet, ends = self.fleet, []
        tap, catches = POINTS[fault.point]
        if fault.point == "a join":
            fleet.kill_site(VICTIM)  # so that it joins again
        await fleet.until(lambda log: log.view.live_at(SURVIVOR), "the survivor", PATIENCE_S)
        trap = Trap(catches, "seen", lambda: ends.append(self._hurt(fault)))
        self.taps[tap].set(trap)
        if fault.point == "a join":
            fleet.site(VICTIM)
        await fleet.until(lambda _: ends, str(fault), PATIENCE_S)
        return ends[0]

    def _hurt(self, fault: Fault) -> Callable[[], None]:
        fleet = self.fleet
        if fault.who in ("broker", EMPTIED):
            if fault.stop_s:
                return fleet.suspend(self.broker.pid)
            self.broker.kill()
            if fault.who == EMPTIED:
                assert isinstance(self.broker, Leading), "one of several, or all is lost"
                self.broker.empty()
            return self._broker_back
        if fault.who == "trainer":
            if fault.stop_s:
                return fleet.suspend(fleet.living_trainer(VICTIM))
            fleet.kill_trainer(VICTIM)
            return lambda: None  # its hub starts another
        name = VICTIM if fault.who == "hub" else leader(fleet)
        if fault.stop_s:
            return fleet.suspend(fleet.processes[name].pid)
        fleet.kill(name)
        return lambda: fleet.site(name) if fault.who == "hub" else fleet.coordinate(name)

    def _broker_back(self) -> None:
        time.sleep(BROKER_AWAY_S)
        self.broker.start()

    def _judge(self, fault: Fault, codes: list[tuple[str, str]]) -> None:
        """Nobody is departed who need not be."""
        allowed = {"hub": {"lost", "replaced"}, "trainer": {"trainer", "lost"}}.get(
            fault.who, set[str]()
        )
        sites = {VICTIM}
        if 0 < fault.stop_s < self.lost_after_s / 2:
            allowed = set()
        elif fault.stop_s and fault.who == "broker" and isinstance(self.broker, Leading):
            # The others serve meanwhile, and whoever is on the hung one is cut off for longer than
            # a lease of 4 s, in which a hung server cannot be told from a slow one.
            allowed, sites = {"lost"}, {VICTIM, SURVIVOR}
        if fault.point == "a join":
            allowed = allowed | {"replaced", "lost"}  # that was before the fault
        assert {site for site, _ in codes} <= sites, (fault, codes)
        assert {code for _, code in codes} <= allowed, (fault, codes)


def leader(fleet: Fleet) -> str:
    """Which of the fleet's coordinators holds the newest term."""
    _, claim = fleet.history.of(CoordinatorElected)[-1]
    pid = int(claim.holder.rpartition("-")[2])
    return next(name for name, process in fleet.processes.items() if process.pid == pid)


def _merged(log: History, after: int) -> set[str]:
    """Sites of which something was merged that they published behind a sequence."""
    return {cut.site for _, cut in log.merged(after) if cut.delta[0] > after}


def _words(codes: list[tuple[str, str]], num_admitted: int, num_terms: int) -> str:
    departed = [
        f"{num} x departed ({code})" if num > 1 else f"departed ({code})"
        for code, num in sorted(Counter(code for _, code in codes).items())
    ]
    admitted = [f"admitted anew x {num_admitted}" if num_admitted > 1 else "admitted anew"]
    terms = [f"{num_terms} new term{'s' * (num_terms != 1)}"]
    parts = departed + (admitted if num_admitted else []) + (terms if num_terms else [])
    return ", ".join(parts) or "nobody noticed"
