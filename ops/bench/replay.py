"""How fast a log becomes a lease table, and how fast and how small its audit is.

The log is a simulated run's with the rates of `paper-24h` (see `ops.bench.history`). Fold and bare
loop are compared by processor time and take turns batch by batch, so that whatever else the machine
does falls on both; neither waits for a disk. Events per second are of the clock on the wall.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog.chain import Record
from eventlog.errors import AtollError
from eventlog.export import write_export
from ops.bench import history, peers
from ops.bench.measure import Measure, Progress, Report, at_least, at_most, measured

MAX_AUDIT_MB = 500
MAX_GROWTH = 1.25  # of an audit's time per event over ten times the events


@dataclass(frozen=True, slots=True)
class Sizes:
    """blocks: of the simulated epoch. events: that are folded in each of `runs`. short, long: the
    events of two logs that are audited, the short one `runs` times."""

    blocks: int
    events: int
    runs: int
    short: int
    long: int


FULL = Sizes(blocks=120, events=50_000, runs=5, short=100_000, long=1_000_000)
QUICK = Sizes(blocks=30, events=4_000, runs=1, short=4_000, long=12_000)


@dataclass(slots=True)
class _Rates:
    """Events per second of each run; `cpu` and `bare` of processor time."""

    cpu: list[float] = field(default_factory=list)
    fold: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)


class PeerMissing(AtollError):
    """The library to compare with is not installed."""


def run(quick: bool, progress: Progress) -> Report:
    """See `ops.commands.bench`. Raises PeerMissing."""
    if find_spec("eventsourcing") is None:
        raise PeerMissing(
            "this benchmark compares with the eventsourcing library: install "
            "atoll[bench] (in a checkout: .venv/bin/python -m pip install -e '.[bench]')"
        )
    sizes = QUICK if quick else FULL
    parts = 4 + sizes.runs
    progress("simulating a run", 0, parts)
    base = history.simulated(history.paper(sizes.blocks))
    with TemporaryDirectory(prefix="atoll-bench-") as name:
        folder, rates = Path(name), _Rates()
        records = list(history.retold(base, sizes.events))
        progress("storing the events for the library", 1, parts)
        library = peers.Library(records, folder)
        for number in range(sizes.runs):
            progress("folding", 2 + number, parts)
            _race(records, library, folder / str(number), rates)
        progress("auditing", 2 + sizes.runs, parts)
        short = _audits(base, sizes.short, folder, sizes.runs)
        progress("auditing the long log", 3 + sizes.runs, parts)
        long = _audits(base, sizes.long, folder, 1)
    num_void = history.num_void(base)
    notes = (
        f"the log: a simulated run of {len(base):,} events ({sizes.blocks} blocks, the sites of "
        f"paper-24h, one crash), {num_void} of them void, told again in the next epochs",
        f"fold, bare loop and library: {sizes.events:,} events in transactions of {peers.BATCH}; "
        "the library commits each event, to memory",
        f"audit: of {sizes.long:,} events once, of {sizes.short:,} events in each run",
    )
    return Report("replay", (*_folding(rates), *_auditing(short, long)), sizes.runs, notes)


def _race(records: Sequence[Record], library: peers.Library, folder: Path, rates: _Rates) -> None:
    folder.mkdir()
    run = history.run_of(records)
    fold, bare = peers.Fold(run, folder / "fold.sqlite"), peers.Bare(run, folder / "bare.sqlite")
    for batch in peers.batches(records):
        fold.feed(batch)
        bare.feed(batch)
    fold.close()
    bare.close()
    rates.fold.append(len(records) / fold.seconds)
    rates.cpu.append(len(records) / fold.cpu_s)
    rates.bare.append(len(records) / bare.cpu_s)
    rates.library.append(len(records) / library.project(folder.name))


def _folding(rates: _Rates) -> tuple[Measure, ...]:
    unit = "events/s"
    return (
        measured(
            "fold",
            rates.cpu,
            "events/s of processor time",
            against="a bare loop: unpack, log digest, one upsert an event",
            against_values=rates.bare,
            target=at_least(0.4, of="ratio"),
        ),
        measured("events per second", rates.fold, unit, target=at_least(15_000)),
        measured(
            "eventsourcing",
            rates.fold,
            unit,
            against=f"eventsourcing {version('eventsourcing')}, SQLite recorders",
            against_values=rates.library,
            target=at_least(3, of="ratio"),
        ),
    )


def _auditing(short: list[dict[str, Any]], long: list[dict[str, Any]]) -> tuple[Measure, ...]:
    before, after = short[0]["events"], long[0]["events"]
    return (
        measured(
            "audit memory",
            [one["peak_mb"] for one in long],
            "MB",
            against=f"the limit, for {after:,} events",
            against_values=MAX_AUDIT_MB,
            target=at_most(MAX_AUDIT_MB),
        ),
        measured(
            "audit linear",
            [one["cpu_s"] / one["events"] * 1e6 for one in long],
            "µs/event of processor time",
            against=f"the same for {before:,} events",
            against_values=[one["cpu_s"] / one["events"] * 1e6 for one in short],
            target=at_most(MAX_GROWTH, of="ratio"),
        ),
    )


def _audits(
    base: list[Record], num_events: int, folder: Path, num_runs: int
) -> list[dict[str, Any]]:
    """What each audit of a log of so many events took. Raises AssertionError where one finds
    something: then the log is none that a run could have written."""
    path, name = folder / f"{num_events}.atoll", history.run_of(base)
    asyncio.run(write_export(name, _read(history.retold(base, num_events)), path))
    command = [sys.executable, "-m", "ops.bench.audited", str(path)]
    answers = []
    for _ in range(num_runs):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        answer = json.loads(done.stdout)
        if answer["violations"] or answer["events"] != num_events:
            raise AssertionError(f"the audit of the benchmark's own log says {answer}")
        answers.append(answer)
    path.unlink()
    return answers


async def _read(records: Iterable[Record]) -> AsyncIterator[list[Record]]:
    rest = iter(records)
    while batch := list(islice(rest, peers.BATCH)):
        yield batch
