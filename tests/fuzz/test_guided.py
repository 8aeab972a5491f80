"""A million inputs, guided by what code they reach, and as many drawn ones as half an hour has time
for; recorded in docs/results/fuzz.txt.

make soak ARGS=tests/fuzz
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
RECORD = Path(os.environ.get("ATOLL_FUZZ_RESULT", ROOT / "docs/results/fuzz.txt"))
NUM_BYTES, NUM_ODD = 1_000_000, 330_000  # of all targets


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed (Linux only)")
def test_a_million_guided_inputs_crash_no_reader(tmp_path: Path) -> None:
    lines = ["`make soak`: tests/fuzz/test_guided.py, atheris (libFuzzer)", ""]
    failed = []
    for (way, num), target in product((("bytes", NUM_BYTES), ("odd", NUM_ODD)), TARGETS):
        share = -(-num // len(TARGETS))
        code, seconds, said = _guided(target, share, way, tmp_path)
        if code:
            failed.append(f"{target.name}, {way}: {said}")
        held = "hold" if code == 0 else f"FAIL ({code})"
        lines.append(f"{target.name:<12} {share:>7,} {way:<5} {held}, {seconds:.0f} s")
    RECORD.write_text("\n".join(lines) + "\n")
    assert not failed, "\n".join(failed)


def _guided(target: Target, num: int, way: str, folder: Path) -> tuple[int, float, str]:
    """Exit code, seconds, and the end of what was said."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", target.name, str(num), way],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, time.monotonic() - began, (done.stdout + done.stderr)[-2000:]
