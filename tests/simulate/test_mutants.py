"""The simulator can fail: rules are broken in a copy of the code, and it notices.

The patches of tests/mutants say what each breaks, and within how many seeds it is to be caught. A
few are sought here, all of them by `make soak`, which leaves its record in docs/results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mutants import ROOT, Mutant, Verdict, all_mutants, copy, record, seek

MUTANTS = all_mutants()
FAST = [one for one in MUTANTS if one.fast]
RULES = [f"R{number}" for number in range(1, 21)]
RESULT = Path(os.environ.get("ATOLL_MUTANTS_RESULT", ROOT / "docs/results/mutants.txt"))


def name(mutant: Mutant) -> str:
    return mutant.name


def test_every_rule_has_a_mutant() -> None:
    assert len(MUTANTS) >= 20
    assert not set(RULES) - {one.rule for one in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=name)
def test_a_patch_still_applies(mutant: Mutant) -> None:
    """A rule that is written anew needs its mutant written anew."""
    done = subprocess.run(
        ["git", "apply", "--check", "-p1", str(mutant.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mutant", FAST, ids=name)
def test_a_broken_rule_is_caught(mutant: Mutant) -> None:
    with copy(mutant) as folder:
        found = seek(folder, mutant.scenario, mutant.seeds)
    assert found.caught, found.talk


def test_a_failing_seed_is_shrunk_and_replays_exactly() -> None:
    """Twice the same words and the same log; and the shortened plan, alone, fails too."""
    mutant = next(one for one in MUTANTS if one.name == "R04-a-departure-returns-nothing")
    with copy(mutant) as folder:
        first = seek(folder, mutant.scenario, mutant.seeds)
        assert first.failed is not None
        runs = [_single(folder, first.failed, f"{number}.atoll") for number in (1, 2)]
        logs = [(folder / f"{number}.atoll").read_bytes() for number in (1, 2)]
        check = subprocess.run(
            [sys.executable, "-c", SHRUNK.format(seed=first.failed)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
    assert logs[0] == logs[1]
    assert [done.returncode for done in runs] == [1, 1]
    said = [re.sub(r"(?m)^faults \(.*$", "", done.stderr) for done in runs]
    assert said[0] == said[1]
    assert "the last events:" in said[0] and "violated: " in said[0]
    assert f"replay with: atoll simulate nightmare --seed {first.failed} --trace" in said[0]
    assert check.returncode == 0, check.stderr
    (num_faults,) = re.findall(r"with (\d+) faults:", said[0])
    assert check.stdout.split() == [num_faults, "fails"]


SHRUNK = """
from ops.simulate import many, scenario
from ops.simulate.run import plan_of, simulate
nightmare = scenario.load("nightmare")
shortest = many.shrink(nightmare, {seed}, "nightmare", lambda left, all: None)
assert len(shortest.plan) <= len(plan_of(nightmare, {seed}))
again = simulate(nightmare, {seed}, shortest.plan)
print(len(again.plan), "fails" if again.broken else "holds")
"""


def _single(folder: Path, seed: int, log: str) -> subprocess.CompletedProcess[str]:
    options = ["simulate", "nightmare", "--seed", str(seed), "--log", log, "--json"]
    return subprocess.run(
        [sys.executable, "-m", "ops", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.soak
def test_every_mutant_is_caught_and_the_code_as_it_is_passes_the_same_seeds() -> None:
    verdicts: list[tuple[Mutant, Verdict]] = []
    for mutant in MUTANTS:
        with copy(mutant) as folder:
            verdicts.append((mutant, seek(folder, mutant.scenario, mutant.seeds)))
    clean = []
    for scenario in sorted({one.scenario for one in MUTANTS}):
        seeds = max(one.seeds for one in MUTANTS if one.scenario == scenario)
        with copy(None) as folder:
            clean.append((scenario, seeds, seek(folder, scenario, seeds)))
    RESULT.write_text(record(verdicts, clean))
    assert not [mutant.name for mutant, found in verdicts if not found.caught]
    assert not [scenario for scenario, _, found in clean if found.code != 0]
