"""`failover`: what a death costs who lives on, and who comes back. SIGKILL to real processes.

Two sites train the demo's model under a coordinator with a standby. Every trial begins when all is
well, and the run is left to recover before the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.config import Timing
from eventlog.events import (
    COORDINATOR,
    BlockCompleted,
    CoordinatorElected,
    DeltaPublished,
    SiteAdmitted,
    VersionApplied,
)
from leases.states import LEASED, TRAINED, TRAINING
from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.bench.rig import Rig, rigged
from sitehub.spawn import PRELOAD_VARIABLE

SITES, COORDINATORS = ("alpha", "beta"), ("first", "second")
RUNS = 5
NUM_LEFT = 3  # blocks that a survivor still has to begin where "blocks are left"
RESTART_S = 15.0
_ALONE = {PRELOAD_VARIABLE: "", "PYTHONPROFILEIMPORTTIME": "1"}


@dataclass(slots=True)
class Found:
    """Seconds, one of each trial."""

    failover: list[float] = field(default_factory=list)
    stall: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # the survivor's inner step in those trials
    restart: list[float] = field(default_factory=list)
    transfer: list[float] = field(default_factory=list)
    imports: list[float] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> Report:
    """All of it: a minute when quick, about five else."""
    num, found = 1 if quick else RUNS, Found()
    lease_s = asyncio.run(_run(num, found, progress))
    return Report("failover", measures(found, lease_s), num)


def measures(found: Found, lease_s: float) -> tuple[Measure, ...]:
    timing = Timing.of(lease_s)
    silence_s = timing.lost_ticks(len(SITES)) * timing.tick_s
    return (
        measured(
            "failover",
            found.failover,
            "s",
            against="K ticks plus 1 s",
            against_values=silence_s + 1.0,
            target=at_most(1.0, "ratio"),
        ),
        measured(
            "survivor stall",
            found.stall,
            "s",
            against="the lease plus 1 s",
            against_values=lease_s + 1.0,
            target=at_most(1.0, "ratio"),
        ),
        measured(
            "survivor stall, blocks left",
            found.left,
            "s",
            against="one inner step",
            against_values=found.steps,
            target=at_most(1.0, "ratio"),
        ),
        measured(
            "restart",
            found.restart,
            "s",
            against="15 s, without the transfer",
            against_values=RESTART_S,
            target=at_most(1.0, "ratio"),
        ),
        measured("restart, its imports", found.imports, "s"),
        measured("restart, its transfer", found.transfer, "s"),
    )


async def _run(num: int, found: Found, progress: Progress) -> float:
    async with rigged() as rig:
        for name in COORDINATORS:
            rig.coordinate(name)
        for name in SITES:
            rig.site(name)
        trials: dict[str, Callable[[Rig, Found], Awaitable[None]]] = {
            "failover": _failover,
            "survivor stall": _stall,
            "survivor stall, blocks left": _blocks_left,
            "restart": _restart,
        }
        for what, trial in trials.items():
            for done in range(num):
                progress(what, done, num)
                await _all_is_well(rig)
                await trial(rig, found)
            progress(what, num, num)
        return rig.config.lease_s


async def _all_is_well(rig: Rig) -> None:
    """Both sites deliver to a version behind now, under a coordinator with a standby."""
    at = rig.last

    def delivered() -> bool:
        sites = {_source(rig, number) for number, _ in rig.of(DeltaPublished, after=at)}
        return sites >= {f"site.{name}" for name in SITES} and rig.leader() is not None

    await rig.until(delivered, "both sites to deliver")
    await rig.until(rig.stand_by, "a standby")


# -- trials ---------------------------------------------------------------------------------------


async def _failover(rig: Rig, found: Found) -> None:
    """From the SIGKILL to the first decision of the next term behind its claim."""
    leader, at = rig.leader(), rig.last
    assert leader is not None
    killed = time.monotonic()
    rig.crew.kill(leader)

    def decided() -> int | None:
        claims = rig.of(CoordinatorElected, after=at)
        behind = claims[0][0] if claims else rig.last
        for number in range(behind + 1, rig.last + 1):
            if _source(rig, number) == COORDINATOR and number not in rig.voids:
                return number
        return None

    number = await rig.until(decided, "a decision of the standby")
    found.failover.append(rig.came[number - 1] - killed)
    rig.coordinate(leader)


async def _stall(rig: Rig, found: Found) -> None:
    """One site has just delivered all that it had; the other dies with blocks in work. For how
    long does the first train nothing?"""

    at = rig.last

    def delivered() -> str | None:
        for number, _ in rig.of(DeltaPublished, after=at)[-1:]:
            survivor = _source(rig, number).removeprefix("site.")
            if TRAINING in _states(rig, _other(survivor)) and not _states(rig, survivor):
                return survivor
        return None

    survivor = await rig.until(delivered, "a site that waits for the other")
    killed, at = time.time(), rig.last
    rig.kill_site(_other(survivor))
    number, block = await rig.until(
        lambda: next(iter(rig.of(BlockCompleted, f"site.{survivor}", after=at)), None),
        "the survivor to train",
    )
    found.stall.append(rig.at(number) - block.seconds - killed)
    rig.site(_other(survivor))


async def _blocks_left(rig: Rig, found: Found) -> None:
    """Both train; one dies while the other has blocks to begin. The longest pause of the other
    between two of these."""

    def both_train() -> str | None:
        for name in SITES:
            mine, theirs = _states(rig, name), _states(rig, _other(name))
            if mine.count(LEASED) >= NUM_LEFT and TRAINED in mine and TRAINING in theirs:
                return name
        return None

    survivor = await rig.until(both_train, "both sites in mid-round")
    source, at = f"site.{survivor}", rig.last
    rig.kill_site(_other(survivor))
    end, _ = await rig.until(
        lambda: next(iter(rig.of(DeltaPublished, source, after=at)), None),
        "the survivor's delta",
    )
    done = [one for one in rig.of(BlockCompleted, source, after=at) if one[0] < end]
    before, pauses = rig.of(BlockCompleted, source)[-len(done) - 1][0], []
    for number, block in done:
        pauses.append(rig.at(number) - rig.at(before) - block.seconds)
        before = number
    found.left.append(max(0.0, *pauses))
    found.steps.extend(block.seconds / rig.config.steps_per_block for _, block in done)
    rig.site(_other(survivor))


async def _restart(rig: Rig, found: Found) -> None:
    """A site dies and is started again at once, as a batch script would: interpreters and imports
    of its own. From the start to its first block, without the transfer of the model."""
    name, at = SITES[1], rig.last
    rig.kill_site(name)
    home, run = rig.crew.home, rig.config.name
    logs = (home.process_log(name), home.site(run, name) / "work" / "trainer.log")
    sizes = [log.stat().st_size if log.exists() else 0 for log in logs]
    shared = rig.crew.environment
    rig.crew.environment = shared | _ALONE
    began = time.time()
    rig.site(name)
    rig.crew.environment = shared
    admitted = await rig.until(
        lambda: next((seq for seq, e in rig.of(SiteAdmitted, after=at) if e.site == name), None),
        "its admission",
    )
    number, block = await rig.until(
        lambda: next(iter(rig.of(BlockCompleted, f"site.{name}", after=admitted)), None),
        "its first block",
    )
    took = rig.at(number) - block.seconds - began
    applied = rig.of(VersionApplied, f"site.{name}", after=admitted)
    transfer = sum(one.seconds.get("download", 0.0) for seq, one in applied if seq < number)
    found.restart.append(took - transfer)
    found.transfer.append(transfer)
    found.imports.append(sum(map(_imports_s, logs, sizes)))


def _imports_s(log: Path, start: int) -> float:
    """What a process spent in imports, as Python itself says: `import time: self | ... | name`."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    parts = [line.removeprefix("import time:").split("|") for line in lines if "|" in line]
    return sum(int(part[0]) for part in parts if part[0].strip().isdigit()) / 1e6


def _other(site: str) -> str:
    return SITES[1 - SITES.index(site)]


def _source(rig: Rig, sequence: int) -> str:
    return rig.entries[sequence - 1].record.subject


def _states(rig: Rig, site: str) -> list[str]:
    """States of the blocks that a site's living incarnation holds undelivered."""
    one = rig.view.live_at(site)
    return [block.state for block in rig.view.held(one.token[0])] if one else []
