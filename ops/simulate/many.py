"""Many seeds on all cores, and the shortening of a failing one."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.simulate.faults import Fault
from ops.simulate.run import Outcome, plan_of, scratch, simulate
from ops.simulate.scenario import Scenario

MAX_NAMED = 20  # failing seeds, and violations, that the summary names
_work: tuple[Scenario, str, Path] | None = None  # of a worker process


@dataclass(slots=True)
class Summary:
    """What became of many seeds."""

    scenario: str
    seeds: list[int]
    num_done: int = 0
    failed: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    violations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, one: Outcome) -> None:
        """Count an outcome."""
        self.num_done += 1
        self.violations += len(one.broken)
        if one.broken:
            self.failed.append(one.seed)
            self.broken += [f"seed {one.seed}: {what}" for what in one.broken][:MAX_NAMED]
        self.faults.update(one.faults)
        for name in _SUMMED:
            self.sums[name] += int(getattr(one, name))
        self.sums["departures"] += len(one.departures)

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        granted = self.sums["blocks_granted"]
        return {
            "scenario": self.scenario,
            "seeds": [self.seeds[0], self.seeds[-1]],
            "num_seeds": self.num_done,
            "violations": self.violations,
            "failed": sorted(self.failed)[:MAX_NAMED],
            "broken": self.broken[:MAX_NAMED],
            "num_failed": len(self.failed),
            "reclaimed_share": self.sums["blocks_reclaimed"] / granted if granted else 0.0,
            **{name: self.sums[name] for name in (*_SUMMED, "departures")},
            "faults": dict(sorted(self.faults.items())),
            "seconds": self.seconds,
        }


_SUMMED = (
    "finished",
    "events",
    "rounds",
    "tokens",
    "blocks_granted",
    "blocks_reclaimed",
    "reclaimed_unstarted",
    "reclaimed_started",
    "blocks_stolen",
)


def outcomes(
    scenario: Scenario, name: str, seeds: Sequence[int], num_workers: int
) -> Iterator[Outcome]:
    """Every seed's outcome, as they come."""
    if num_workers <= 1 or len(seeds) <= 1:
        for seed in seeds:
            yield simulate(scenario, seed, name=name)
        return
    # not forked: who has computed with torch has threads, and their locks do not survive a fork
    context = multiprocessing.get_context("spawn")
    with scratch() as folder:  # ours: a worker that is ended in a seed removes nothing
        work = (scenario, name, Path(folder))
        pool = context.Pool(num_workers, _begin, work, maxtasksperchild=500)
        try:
            yield from pool.imap_unordered(_one, seeds, chunksize=1)
        finally:
            pool.terminate()
            pool.join()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def shrink(
    scenario: Scenario, seed: int, name: str, progress: Callable[[int, int], None]
) -> Outcome:
    """The outcome of the shortest plan that still fails: faults are left out one by one until
    every one of them is needed. Raises ValueError where the seed does not fail."""
    plan = plan_of(scenario, seed)
    best = simulate(scenario, seed, plan, name=name)
    if not best.broken:
        raise ValueError(f"seed {seed} does not fail")
    tried = 0
    while (shorter := _shorter(scenario, seed, name, best.plan)) is not None:
        tried += 1
        progress(len(shorter.plan), len(plan))
        best = shorter
    return best


def _shorter(scenario: Scenario, seed: int, name: str, plan: list[Fault]) -> Outcome | None:
    for leave_out in reversed(range(len(plan))):
        rest = plan[:leave_out] + plan[leave_out + 1 :]
        found = simulate(scenario, seed, rest, name=name)
        if found.broken:
            return found
    return None


def _begin(scenario: Scenario, name: str, where: Path) -> None:
    global _work
    _work = (scenario, name, where)


def _one(seed: int) -> Outcome:
    assert _work is not None
    scenario, name, where = _work
    return simulate(scenario, seed, name=name, where=where)
