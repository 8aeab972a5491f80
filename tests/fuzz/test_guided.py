"""A million inputs, guided by what code they reach; recorded in docs/results/fuzz.txt.

make soak ARGS=tests/fuzz
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
RECORD = Path(os.environ.get("ATOLL_FUZZ_RESULT", ROOT / "docs/results/fuzz.txt"))
NUM_INPUTS = 1_000_000


@pytest.mark.soak
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed (Linux only)")
def test_a_million_guided_inputs_crash_no_reader(tmp_path: Path) -> None:
    lines = ["`make soak`: tests/fuzz/test_guided.py, atheris (libFuzzer)", ""]
    failed = []
    for target in TARGETS:
        code, seconds, said = _guided(target, -(-NUM_INPUTS // len(TARGETS)), tmp_path)
        if code:
            failed.append(f"{target.name}: {said}")
        held = "hold" if code == 0 else f"FAIL ({code})"
        lines.append(
            f"{target.name:<12} {-(-NUM_INPUTS // len(TARGETS)):>7,} {held}, {seconds:.0f} s"
        )
    RECORD.write_text("\n".join(lines) + "\n")
    assert not failed, "\n".join(failed)


def _guided(target: Target, num: int, folder: Path) -> tuple[int, float, str]:
    """Exit code, seconds, and the end of what was said."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", target.name, str(num)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, time.monotonic() - began, (done.stdout + done.stderr)[-2000:]
