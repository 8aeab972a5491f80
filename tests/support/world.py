"""A broker and sites as they stand in the world: each in a network of its own, far from the others.

All know the broker by its name. For a site that is this machine's end of its only cable, where a
tap passes on what comes, unread, and has it wait on its way; nothing else is in its reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from broker.deathsig import arm, death_signal
from tests.support.forkserver import CHECKOUT
from tests.support.netns import Network, inside, network
from tests.support.tap import tapped

HOST, PORT = "broker.example.org", 4222
BROKER = "broker"  # the place where it stands


@dataclass(frozen=True, slots=True)
class World:
    """`places`: the networks by name. `url`: where this process itself, which is in none of them,
    reaches the broker."""

    folder: Path
    places: dict[str, Network]
    url: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def atoll(
        self, place: str, *arguments: str, within_s: float = 300.0, code: int = 0, **env: str
    ) -> str:
        """What `atoll ARGUMENTS` prints in a place; it must end with `code`. Paths are below
        `folder`."""
        done = await asyncio.to_thread(  # the taps have to go on
            subprocess.run,
            self._command(place, [sys.executable, "-m", "ops", *arguments]),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(**env),
            timeout=within_s,
            check=False,
        )
        said = f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, said
        return done.stdout if code == 0 else done.stderr

    def start(
        self, place: str, command: Sequence[str], log: Path, *, typed: bool = False
    ) -> subprocess.Popen[bytes]:
        """A command that goes on; it ends with this process, whatever ends that. typed: its input
        is a pipe."""
        prctl, parent = death_signal(), os.getpid()
        with log.open("ab") as said:
            process = subprocess.Popen(
                self._command(place, command),
                stdin=subprocess.PIPE if typed else subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
                preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
            )
        self.running.append(process)
        return process

    def close(self) -> None:
        """End what was started and still runs."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def environment(self, **more: str) -> dict[str, str]:
        """Ours without what says where a broker or a home is."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith("ATOLL_")}
        quiet = {"NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
        return {**ours, **quiet, **more}

    def _command(self, place: str, command: Sequence[str]) -> list[str]:
        return [*inside(self.places[place].name), *command]


@contextlib.asynccontextmanager
async def worldwide(
    folder: Path, sites: Sequence[str], delay_s: float, kbit_per_s: int
) -> AsyncIterator[World]:
    """A place for the broker, which the test starts there, and one a site: `delay_s` away from it
    in each direction, on a link that takes no more than so much."""
    async with AsyncExitStack() as stack:
        places = {name: stack.enter_context(network()) for name in (BROKER, *sites)}
        there = f"tls://{places[BROKER].own}:{PORT}"
        places[BROKER].knows({"localhost": "127.0.0.1", HOST: places[BROKER].own})
        for name in sites:
            place = places[name]
            place.knows({"localhost": "127.0.0.1", HOST: place.host})
            place.slow(kbit_per_s)
            at = (place.host, PORT)
            await stack.enter_async_context(tapped(there, delay_s, at=at))
        near = await stack.enter_async_context(tapped(there))
        world = World(folder, places, near.url)
        stack.callback(world.close)
        yield world
