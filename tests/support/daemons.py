"""What real Slurm tests need of this machine: its daemons, processes that end, ports that are free.

Where Slurm is missing a test is skipped and says so; with CI (or ATOLL_CI, which .ci/run sets) in
the environment it fails, for there nobody reads what was skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from broker.deathsig import arm, death_signal

_TOOLS = ("slurmctld", "slurmd", "sbatch", "munged")
DATABASE = ("slurmdbd", "mariadbd", "mariadb-install-db")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def require(*more: str) -> None:
    """Skip, or fail in CI, where this machine has no Slurm (or not the database's daemons)."""
    missing = [f"`{tool}`" for tool in (*_TOOLS, *more) if shutil.which(tool, path=PATH) is None]
    missing += ["root"] if os.geteuid() else []
    if not missing:
        return
    why = f"a real Slurm needs {' and '.join(missing)}"
    if os.environ.get("CI") or os.environ.get("ATOLL_CI"):
        pytest.fail(f"{why}, which CI must have")
    pytest.skip(why)


class Processes:
    """What was started, to be ended by its own process id and never by name."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a daemon in the foreground, its output thrown away; it ends with this process."""
        prctl, parent = death_signal(), os.getpid()
        process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": PATH, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
        )
        self._started[name] = process
        return process

    def __contains__(self, name: str) -> bool:
        return name in self._started

    def __getitem__(self, name: str) -> subprocess.Popen[bytes]:
        return self._started[name]

    def kill(self, *names: str) -> None:
        """SIGKILL, and wait."""
        for name in names:
            process = self._started.pop(name)
            process.kill()
            process.wait()

    def end(self) -> None:
        """SIGTERM to all, and SIGKILL to whoever is there 5 s later: a slurmd whose controller is
        gone can sit in a retry for minutes."""
        processes = list(self._started.values())[::-1]
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        until = time.monotonic() + 5
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            process.kill()
            process.wait()
        self._started.clear()


def free_ports(number: int) -> int:
    """The first of so many ports that nobody uses now, below the range that systems give away."""
    for first in range(17_000 + os.getpid() % 8_000, 32_000, number + 3):
        if all(_is_free(first + offset) for offset in range(number)):
            return first
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
