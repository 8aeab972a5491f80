"""Processes of the demo: real ones, each with a log of its own, ended by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.deathsig import arm, death_signal
from eventlog.errors import AtollError
from ops.home import Home

_END_S = 15.0


class DemoFailed(AtollError):
    """Something in the demo went otherwise than told; the text says what, and where to look."""


@dataclass(slots=True)
class Crew:
    """The processes that were started, by name. `environment` is added to theirs."""

    home: Home
    environment: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `atoll ARGUMENTS`; what it says goes to the log of that name."""
        prctl, parent = death_signal(), os.getpid()
        with self.home.process_log(name).open("ab") as output:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "ops", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment, "ATOLL_HOME": str(self.home.root)},
                start_new_session=True,
                preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
            )

    def kill(self, name: str) -> None:
        """SIGKILL to one process, which is waited for."""
        self.running[name].kill()
        self.running.pop(name).wait()

    def kill_site(self, run: str, name: str) -> None:
        """SIGKILL to a site's hub and trainer: what a node failure looks like."""
        record = self.home.site(run, name) / "site.json"
        self.kill(name)
        try:
            os.kill(int(json.loads(record.read_text())["trainer_pid"]), signal.SIGKILL)
        except (OSError, ValueError, KeyError, TypeError):
            return  # the trainer ends by itself when its hub is gone

    def check(self) -> None:
        """Raises DemoFailed where a process has ended badly."""
        for name, process in self.running.items():
            if process.poll() not in (None, 0):
                log = self.home.process_log(name)
                said = log.read_text(errors="replace").strip().splitlines()
                last = said[-1] if said else "it said nothing"
                raise DemoFailed(f"{name} ended with code {process.poll()}: {last} (see {log})")

    def wait(self) -> None:
        """Wait until all have ended by themselves, as they must when the run has finished."""
        for name, process in self.running.items():
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired as error:
                raise DemoFailed(
                    f"{name} did not end when the run had; see {self.home.process_log(name)}"
                ) from error
        self.check()
        self.running.clear()

    def end(self) -> None:
        """End whatever still runs, at once: any of it may be killed at any instruction, and asked
        to leave well sites would wait for a coordinator that leaves with them."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        self.running.clear()


def end_preload(process: subprocess.Popen[bytes]) -> None:
    """End the parent that trainers are forked from."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
