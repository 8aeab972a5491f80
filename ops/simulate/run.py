"""One seed from its founding to its end, and the verdict."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog.chain import Record
from eventlog.events import COORDINATOR, OPERATOR, SITE
from eventlog.export import to_end, write_export
from eventlog.projector import Projection
from leases.schema import table_digest
from leases.table import LeaseTable
from leases.view import View
from ops.simulate import faults
from ops.simulate.faults import Fault
from ops.simulate.harm import befall
from ops.simulate.loop import Stuck, VirtualLoop
from ops.simulate.network import Client
from ops.simulate.scenario import Scenario
from ops.simulate.store import SimBlobs
from ops.simulate.watcher import Broken
from ops.simulate.world import World
from outer import recover

MEMORY = Path("/dev/shm")  # where there is such a thing: nothing here has to survive
LEAVE_S = 120.0  # within which everybody leaves a finished run
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed. `plan`: the faults that were planned; `events`: the last ones, for a
    trace. Everything but `seconds` is a function of scenario, seed and plan."""

    scenario: str
    seed: int
    broken: list[Broken]
    finished: bool
    virtual_s: float
    events: int
    rounds: int
    tokens: int
    blocks_granted: int
    blocks_reclaimed: int
    reclaimed_unstarted: int
    reclaimed_started: int
    blocks_stolen: int
    departures: list[dict[str, object]]
    faults: dict[str, int]
    log_digest: str
    model_digest: str | None
    seconds: float
    plan: list[Fault] = field(default_factory=list)
    last_events: list[str] = field(default_factory=list)

    @property
    def reclaimed_share(self) -> float:
        """Blocks reclaimed over blocks granted."""
        return self.blocks_reclaimed / self.blocks_granted if self.blocks_granted else 0.0

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        whole = asdict(self)
        for name in ("broken", "plan", "last_events"):
            whole.pop(name)
        share = self.reclaimed_share
        return {
            "scenario": whole.pop("scenario"),
            "seed": whole.pop("seed"),
            "violations": len(self.broken),
            "broken": [str(one) for one in self.broken],
            "reclaimed_share": share,
            **whole,
        }


def plan_of(scenario: Scenario, seed: int) -> list[Fault]:
    """The faults of a seed: those that the scenario tells, and those that chance draws."""
    told = [Fault(**one.model_dump()) for one in scenario.told]
    chance = scenario.chance
    drawn = faults.draw(
        random.Random(f"{seed} faults"),
        chance.num,
        (chance.from_s, chance.to_s),
        chance.weights,
        scenario.config.lease_s,
    )
    return sorted([*told, *drawn], key=lambda fault: fault.at_s)


def scratch(where: Path | None = None) -> TemporaryDirectory[str]:
    """A folder in memory, where there is room, that goes when its user has ended."""
    where = where or (MEMORY if MEMORY.is_dir() else None)
    return TemporaryDirectory(prefix="atoll-simulate-", dir=where, ignore_cleanup_errors=True)


def simulate(
    scenario: Scenario,
    seed: int,
    plan: Sequence[Fault] | None = None,
    *,
    name: str = "",
    say: Callable[[str], None] = lambda _: None,
    log: Path | None = None,
    where: Path | None = None,
) -> Outcome:
    """Run one seed with its own plan of faults, or another one. The same arguments give the same
    log, byte for byte. `log`: where to export it to. `where`: for what it leaves on the way."""
    began, scenario = time.monotonic(), scenario.of(seed)
    plan = plan_of(scenario, seed) if plan is None else list(plan)
    with scratch(where) as folder, _seldom_collecting():
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            world = World(loop, scenario, seed, Path(folder), say)
            loop.set_exception_handler(lambda _, context: _unheard(world, context))
            try:
                loop.run_until_complete(_live(world, plan))
            except Stuck as error:
                world.violated("P2", str(error))
            virtual_s = loop.time()
            loop.run_until_complete(_end(world))
            world.watcher.compare_rows()
            if not world.watcher.broken:
                loop.run_until_complete(_again(world, Path(folder)))
            if log is not None:
                loop.run_until_complete(write_export(world.run, to_end(world.history), log))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
    return _outcome(world, name, seed, plan, virtual_s, time.monotonic() - began)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Python's collector of cycles has little to find here, and would look a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _unheard(world: World, context: dict[str, Any]) -> None:
    if not world.over:
        error = context.get("exception")
        world.violated("P3", f"{context['message']}: {error!r}")


async def _live(world: World, plan: Sequence[Fault]) -> None:
    """Until the run has finished and everybody has left, or something is broken."""
    loop = world.loop
    world.found()
    for fault in plan:
        loop.outside(fault.at_s, befall, world, fault)
    end = world.quiet_at(plan) + world.scenario.settle_s
    finished_at: float | None = None
    while not world.watcher.broken:
        await asyncio.sleep(LOOK_S)
        now = loop.time()
        if world.finished():
            finished_at = now if finished_at is None else finished_at
            left = [one.name for one in world.machines() if one.alive]
            if not left and not world.pending:
                return
            if now > finished_at + LEAVE_S and now > end - world.scenario.settle_s:
                world.violated("P2", f"the run has finished; still there: {', '.join(left)}")
        elif now > end:
            run = world.watcher.view.run()
            world.violated(
                "P2",
                f"{world.scenario.settle_s:g} s after the last fault the run has not finished: "
                f"it is {run.state}, at version {run.version}, {run.live} live",
            )


async def _end(world: World) -> None:
    world.over = True
    tasks = [machine.task for machine in world.machines() if machine.task is not None]
    for machine in world.machines():
        machine.kill(None)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _again(world: World, folder: Path) -> None:
    """P3: another fold of the log, in other batches, gives the same table; and the versions that
    log and blobs give again are the committed ones."""
    records = world.history.all()
    with Projection(":memory:", [LeaseTable()], world.run) as projection:
        for first in range(0, len(records), 97):
            projection.apply(records[first : first + 97])
        if table_digest(projection.db) != _watched(world):
            world.violated("P3", "the log folded again gives another lease table")
        _as_a_hub(world, records, projection)
        view, shelf = View(projection.db), SimBlobs(Client(world.network, "again"), world.blobs)
        try:
            state = await recover.state_at(view, shelf, folder / "again", view.run().version)
        except Exception as error:
            world.violated("P3", f"the last version cannot be recomputed: {error}")
            return
        if state.version != view.run().version:
            world.violated("P3", f"version {state.version} was recomputed")
    shutil.rmtree(folder / "again", ignore_errors=True)


OWN = (  # what a hub knows of its own site, in its scoped fold as in the whole one
    "SELECT epoch, block, state, lease, incarnation, delta FROM blocks WHERE incarnation IN "
    "(SELECT seq FROM incarnations WHERE site = ?1) OR delta IN "
    "(SELECT seq FROM deltas WHERE site = ?1) ORDER BY epoch, block",
    "SELECT seq, id, incarnation, state, base_version, blob, num_blocks, tokens, last, round, "
    "weight FROM deltas WHERE site = ?1 ORDER BY seq",
    "SELECT seq, id, state, code, drain, version, mismatches, refusals FROM incarnations "
    "WHERE site = ?1 ORDER BY seq",
    "SELECT state, term, ticks, round, version, merged_tokens, live FROM run WHERE ?1 != ''",
)


def _as_a_hub(world: World, records: list[Record], whole: Projection) -> None:
    """R16: one site's hub, with its part of the log, judges its own as the whole fold does."""
    site = world.chance.choice(world.sites).name
    subjects = (COORDINATOR, OPERATOR, f"{SITE}.{site}")
    mine = [record for record in records if record.subject in subjects]
    table = LeaseTable(scope=site)
    with Projection(":memory:", [table], world.run, contiguous=False) as hub:
        hub.apply(mine)
        for sql in OWN:
            if hub.db.execute(sql, (site,)).fetchall() != whole.db.execute(sql, (site,)).fetchall():
                world.violated("P4", f"R16: the hub of {site} and the whole fold differ: {sql}")


def _watched(world: World) -> str:
    return table_digest(world.watcher.view.db)


def _outcome(
    world: World, name: str, seed: int, plan: list[Fault], virtual_s: float, seconds: float
) -> Outcome:
    watcher = world.watcher
    found, run, counts = watcher.audit.result(), watcher.view.run(), watcher.referee.ledger.counts
    outcome = Outcome(
        scenario=name,
        seed=seed,
        broken=list(watcher.broken),
        finished=run.state == "finished",
        virtual_s=round(virtual_s, 6),
        events=found.events,
        rounds=run.version,
        tokens=run.merged_tokens,
        blocks_granted=found.blocks_granted,
        blocks_reclaimed=found.blocks_reclaimed,
        reclaimed_unstarted=counts["reclaimed unstarted"],
        reclaimed_started=counts["reclaimed started"],
        blocks_stolen=found.blocks_stolen,
        departures=watcher.referee.departures,
        faults=dict(sorted(world.network.injected.items())),
        log_digest=found.log_digest,
        model_digest=found.model_digest,
        seconds=seconds,
        plan=plan,
        last_events=list(watcher.events),
    )
    watcher.audit.close()
    return outcome
