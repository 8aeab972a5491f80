"""Mutants: patches that break one rule each, applied to a copy of the code and sought out there.

A patch of tests/mutants begins with its header, lines of `key: value` before the diff:

    rule: R5
    promise: P1
    breaks: a decision of a term that is over stands
    scenario: nightmare
    seeds: 60           it is caught by one of the seeds 0..59
    fast: yes           also run by `make test`

Caught means: `atoll simulate` exits with 1 and names a violation, as it does for a rule that is
broken; a program that cannot be started or ends with a traceback is not caught. To seek some by
hand: python -m tests.support.mutants NAME ...
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests" / "mutants"
ROOMS = ("broker", "eventlog", "leases", "ops", "outer", "sitehub")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One patch, as its header describes it."""

    path: Path
    rule: str
    promise: str
    breaks: str
    scenario: str
    seeds: int
    fast: bool

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `atoll simulate` made of a copy. `failed`: its first failing seed."""

    code: int
    failed: int | None
    broken: list[str]
    talk: str
    seconds: float

    @property
    def caught(self) -> bool:
        return self.code == 1 and self.failed is not None and bool(self.broken)


def load(path: Path) -> Mutant:
    """A patch's header. Raises KeyError where it lacks something."""
    header = {}
    for line in path.read_text().splitlines():
        if line.startswith("--- "):
            break
        key, _, value = line.partition(": ")
        header[key] = value
    return Mutant(
        path,
        header["rule"],
        header["promise"],
        header["breaks"],
        header["scenario"],
        int(header["seeds"]),
        header.get("fast") == "yes",
    )


def all_mutants() -> list[Mutant]:
    """Every patch, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.patch"))]


@contextmanager
def copy(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the code, with the mutant's patch applied. Raises where it does not apply: the
    code has moved on, and the patch must be written anew."""
    with TemporaryDirectory(prefix="atoll-mutant-") as folder:
        for room in ROOMS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / room, Path(folder) / room, ignore=ignored)
        if mutant is not None:
            command = ["git", "apply", "-p1", "--whitespace=nowarn", str(mutant.path)]
            env = {**os.environ, "GIT_CEILING_DIRECTORIES": folder}
            subprocess.run(command, cwd=folder, check=True, env=env)
        yield Path(folder)


def seek(folder: Path, scenario: str, seeds: int, workers: int = 1) -> Verdict:
    """Run seeds of a scenario on a copy until one fails."""
    began = time.monotonic()
    options = ["--seeds", str(seeds), "--workers", str(workers), "--fail-fast", "--no-shrink"]
    command = [sys.executable, "-m", "ops", "simulate", scenario, *options, "--json"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        found = {}
    failed = found.get("failed") or [None]
    return Verdict(done.returncode, failed[0], found.get("broken", []), done.stderr, seconds)


def record(verdicts: list[tuple[Mutant, Verdict]], clean: list[tuple[str, int, Verdict]]) -> str:
    """The record of a whole run: each mutant's fate, and that of the code as it is."""
    num_caught = sum(found.caught for _, found in verdicts)
    lines = ["`make soak`: mutants, tests/simulate/test_mutants.py", ""]
    for scenario, seeds, found in clean:
        held = "hold" if found.code == 0 else f"FAIL at seed {found.failed}"
        lines.append(
            f"the code as it is: {seeds} seeds of {scenario} {held}; {found.seconds:.0f} s"
        )
    lines += [f"{num_caught} of {len(verdicts)} mutants are caught", ""]
    for mutant, found in verdicts:
        lines += describe(mutant, found)
    return "\n".join(lines) + "\n"


def describe(mutant: Mutant, found: Verdict) -> list[str]:
    """One mutant's fate, for a person."""
    how = f"caught at seed {found.failed}" if found.caught else f"NOT CAUGHT (exit {found.code})"
    lines = [
        f"{mutant.name}  ({mutant.rule}, {mutant.promise})",
        f"    breaks: {mutant.breaks}",
        f"    {how}; stated: {mutant.seeds} seeds of {mutant.scenario}; {found.seconds:.1f} s",
    ]
    return [*lines, *(f"    {what[:200]}" for what in found.broken[:2])]


def main() -> None:
    """Seek every mutant, or those that are named, and print what became of each."""
    wanted = sys.argv[1:]
    for one in all_mutants():
        if not wanted or one.name in wanted:
            with copy(one) as folder:
                found = seek(folder, one.scenario, one.seeds)
            print("\n".join(describe(one, found)), flush=True)
            if not found.caught:
                print("\n".join(found.talk.splitlines()[-5:]), flush=True)


if __name__ == "__main__":
    main()
