"""The processes of a build: each packs one unit after another, whoever is free takes the next.

Which process packs which unit changes nothing about the bytes. A process that dies ends the build
with a line that says so; what was packed by then stays, and the next build goes on from it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from sitehub import tokenizer as bpe
from sitehub.documents import DataInvalid
from sitehub.packing import OnTokens, Packed, Setup, pack
from sitehub.rowfiles import Unit

Job = tuple[int, Unit]  # a unit and its number
_END_S = 10.0


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def packed(
    jobs: Sequence[Job], setup: Setup, num_processes: int, report: OnTokens
) -> Iterator[Packed]:
    """Pack units, with one process in this one; as each is done, in any order.
    Raises DataInvalid, OSError."""
    num_processes = min(num_processes, len(jobs))
    if num_processes <= 1:
        tokenizer = bpe.read(setup.tokenizer, "tokenizer.json")
        for number, unit in jobs:
            yield pack(unit, number, setup, tokenizer, report)
        return
    packers = [_Packer(setup, max(1, cores() // num_processes)) for _ in range(num_processes)]
    try:
        yield from _shared(jobs, packers, report)
    finally:
        for packer in packers:
            packer.end()


def _shared(jobs: Sequence[Job], packers: Sequence[_Packer], report: OnTokens) -> Iterator[Packed]:
    rest = iter(jobs)
    busy = {packer.channel: packer for packer in packers if packer.give(next(rest, None))}
    while busy:
        for channel in wait(list(busy)):
            packer = busy[channel]  # type: ignore[index]
            what, content = packer.receive()
            if what == "tokens":
                report(content)
            elif what == "failed":
                raise DataInvalid(content)
            else:
                if not packer.give(next(rest, None)):
                    del busy[packer.channel]
                yield content


class _Packer:
    """One process. Its tokenizer uses so many threads."""

    def __init__(self, setup: Setup, num_threads: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sitehub.packing", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"RAYON_NUM_THREADS": str(num_threads)},
            )
        self.channel = Connection(ours.detach())
        self._send(setup)

    def give(self, job: Job | None) -> bool:
        """Whether there was something to give."""
        if job is not None:
            self._send(job)
        return job is not None

    def receive(self) -> tuple[str, Any]:
        """("tokens", n), ("packed", Packed) or ("failed", why). Raises DataInvalid."""
        try:
            return self.channel.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error

    def end(self) -> None:
        """Let it end, which it does once nobody talks to it; unasked where it is at work."""
        self.channel.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, content: object) -> None:
        try:
            self.channel.send(content)
        except ConnectionError as error:
            raise self._died() from error

    def _died(self) -> DataInvalid:
        code = self._process.wait(_END_S)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return DataInvalid(
            f"a process of the build has ended {how}; run the same command again, it goes on from "
            "what is packed (ended by SIGKILL, it was most often out of memory: fewer --processes)"
        )
