"""The simulator can fail: rules are broken in a copy of the code, and it notices."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("eventlog", "leases", "outer", "sitehub", "ops")

# what is broken: (file, what stands there, what stands there in the copy, the seed that shows it)
MUTANTS = {
    "what a departed site held is not given back": (
        "leases/fold_sites.py",
        'books.free(books.held(life.seq), "reclaim")',
        "books.held(life.seq)",
        2,
    ),
    "refused progress stays in the local model": (
        "sitehub/logic.py",
        "hub.rebase = bool(hub.rebase) or event.values",
        "hub.rebase = None",
        14,
    ),
    "the anchor does not move when a delta is published": (
        "sitehub/rehearsal.py",
        "        self._anchor.publish(self._local)\n        return norms",
        "        return norms",
        0,
    ),
    "weights are equal whatever the blocks": (
        "outer/rounds.py",
        "weights([delta.tokens for delta in deltas])",
        "weights([1 for delta in deltas])",
        0,
    ),
    "NaN is not looked for": (
        "outer/codecs.py",
        "if not math.isfinite(_max_abs(tensor)):",
        "if False:",
        29,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_caught(name: str, tmp_path: Path) -> None:
    file, old, new, seed = MUTANTS[name]
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room)
    text = (tmp_path / file).read_text()
    assert text.count(old) == 1, "the rule is no longer written so"
    (tmp_path / file).write_text(text.replace(old, new))
    options = ["simulate", "nightmare", "--no-shrink", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "ops", *options, "--seed", str(seed)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["violations"] >= 1
    assert "replay with: atoll simulate nightmare --seed" in done.stderr
