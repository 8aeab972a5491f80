"""Starts a trainer: forked from the preloaded parent that ATOLL_PRELOAD names, or a new process.

Nothing here imports torch: it is what a hub, and whoever starts the preloaded parent, uses.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eventlog.errors import AtollError
from sitehub.wire import Message, WireInvalid, read_message, write_message

PRELOAD_VARIABLE = "ATOLL_PRELOAD"

# Threads that spin while they wait for each other take the cores from those they wait for: where
# the cores are shared, two spinning threads train at a tenth of the speed of two that sleep.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}

_LONGEST_BYTES = 50
_ANSWER_S = 10.0
_IMPORTED_S = 600.0  # a machine that is busy, or a disk far away, takes minutes to import torch
_POLL_S = 0.02


def socket_folder(prefix: str) -> Path:
    """A new folder of our own whose path leaves room for the name of a socket: unix sockets allow
    little more than 100 bytes, and a job's TMPDIR may be longer."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _LONGEST_BYTES else "/tmp"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=short))


class SpawnFailed(AtollError):
    """No trainer, or no preloaded parent, could be started; the text says why."""


class TrainerHandle:
    """A started trainer. It leads a session and process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes] | None, pid: int, preload: str) -> None:
        self.pid = pid
        self._process, self._preload = process, preload
        self._pidfd = os.pidfd_open(pid) if process is None and hasattr(os, "pidfd_open") else None

    def alive(self) -> bool:
        """Whether the process runs."""
        if self._process is not None:
            return self._process.poll() is None
        if self._pidfd is not None:
            return not select.select([self._pidfd], [], [], 0)[0]
        return self.returncode() is None

    def returncode(self) -> int | None:
        """Its exit code, -n where signal n ended it; None while it runs, or where only its
        preloaded parent knew and that is gone."""
        if self._process is not None:
            return self._process.poll()
        try:
            code: int | None = ask(self._preload, {"status": self.pid}).get("returncode")
        except SpawnFailed:
            return None
        return code

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, at most so long; whether it has ended. Blocks."""
        until = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self) -> None:
        """SIGKILL to it and whatever it started; no error if it has ended."""
        if not self.alive():
            return
        for pid in _descendants(self.pid):  # ranks lead sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # a fork may not lead its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give back the descriptor; the process is left alone."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many processes a site's trainer is, here or by a launcher's command on several nodes, and
    how the model lies on them."""

    num: int = 1
    sharding: str = "ddp"
    launcher: tuple[str, ...] = ()  # what stands before `-m sitehub.trainer`; (): ours

    @property
    def command(self) -> tuple[str, ...]:
        """What stands before `-m sitehub.trainer`: torchrun, or this Python."""
        if self.launcher or self.num == 1:
            return self.launcher or (sys.executable,)
        elastic = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "0")
        return (sys.executable, *elastic, "--nproc-per-node", str(self.num))

    @property
    def is_one(self) -> bool:
        """Whether the trainer is one process, as it is unless somebody says otherwise."""
        return self.num == 1 and not self.launcher


ONE = Ranks()


def spawn_trainer(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, ranks: Ranks = ONE
) -> TrainerHandle:
    """Start `sitehub.trainer` with these arguments, its output appended to `log`; `env` is added
    to its environment. Raises SpawnFailed."""
    preload = os.environ.get(PRELOAD_VARIABLE, "")
    argv = [*argv, *(() if ranks.is_one else ("--sharding", ranks.sharding))]
    if preload and ranks.is_one:
        request = {"argv": list(argv), "log": str(log.absolute()), "env": dict(env or {})}
        return TrainerHandle(None, int(ask(preload, request)["pid"]), preload)
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*ranks.command, "-m", "sitehub.trainer", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**WAITING, **os.environ, **(env or {})},
                start_new_session=True,
            )
    except OSError as error:
        raise SpawnFailed(f"no trainer could be started: {error}") from error
    return TrainerHandle(process, process.pid, "")


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and so on; none where /proc does not say."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def start_preload(
    socket_path: Path, log: Path, timeout_s: float = _IMPORTED_S
) -> subprocess.Popen[bytes]:
    """Start the preloaded parent and wait until it serves. It ends when this process does, or when
    the returned process's `stdin` is closed. Raises SpawnFailed. Blocks while it imports."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sitehub.preload", str(socket_path)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until = time.monotonic() + timeout_s
    while not socket_path.exists():
        ended = process.poll()
        if ended is not None or time.monotonic() >= until:
            process.kill()
            process.wait()
            why = f"is not up after {timeout_s:.0f} s" if ended is None else f"ended with {ended}"
            raise SpawnFailed(f"the preloaded parent {why}; its output is in {log}")
        time.sleep(_POLL_S)
    return process


def ask(preload: str, request: Message) -> Message:
    """One request to a preloaded parent, and its answer. Raises SpawnFailed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_ANSWER_S)
            sock.connect(preload)
            write_message(sock, request)
            answer = read_message(sock)
    except (OSError, WireInvalid) as error:
        raise SpawnFailed(f"the preloaded parent at {preload} does not answer: {error}") from error
    if answer is None or "error" in answer:
        why = "it hung up" if answer is None else answer["error"]
        raise SpawnFailed(f"the preloaded parent at {preload}: {why}")
    return answer
