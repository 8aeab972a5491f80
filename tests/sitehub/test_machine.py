"""What a process that trains does with its memory, and what it says of its machine."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_CHURN = """
import resource, sys, torch
from sitehub import machine
if sys.argv[1] == "set up":
    machine.set_up(1)
def step():
    kept = [torch.ones(1 << 20) for _ in range(8)]  # 4 MiB each
    return [one + 1 for one in kept]
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _CHURN, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose malloc this sets")
def test_a_process_that_trains_keeps_the_memory_that_a_step_has_freed() -> None:
    assert _faults("set up") < 0.2 * _faults("as it is")
