"""What a process of ours has taken so far, as Linux tells it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

THREADS = min(2, os.cpu_count() or 1)  # targets are stated for two cores
QUIET = 0.02  # of a core
_LOOK_S = 0.5
_PATIENCE_S = 600.0


def peak_gb(pid: int) -> float:
    """The peak resident memory of a process that runs, mapped files included; 0.0 where the system
    does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return max(kilobytes, default=0) * 1024 / 1e9


def cpu_s(pid: int) -> float:
    """Processor time of a process that runs. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


async def quiet(pid: int, looks: int = 4) -> None:
    """Wait until a process has had nothing to do for a while. Raises OSError where it has ended,
    TimeoutError."""
    async with asyncio.timeout(_PATIENCE_S):
        before, calm = cpu_s(pid), 0
        while calm < looks:
            await asyncio.sleep(_LOOK_S)
            now = cpu_s(pid)
            calm = calm + 1 if now - before < QUIET * _LOOK_S else 0
            before = now
