"""Real processes of one run, driven through the command line, watched through the log.

Everything that a `Fleet` starts it ends, each by its own pid. It never sleeps for a fixed time: it
waits for what the log says, with a bound, and fails with what every process said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sitehub.spawn import PRELOAD_VARIABLE
from tests.support.forkserver import Forked, ForkServer, start_anew
from tests.support.watched import History

Process = subprocess.Popen[bytes] | Forked
_END_S = 20.0
_LOOK_S = 0.2  # between two looks at processes while nothing comes from the log


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command that has ended left: its exit code and what it said."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        """Its standard output, which is one JSON value."""
        assert self.code == 0, self
        return json.loads(self.out)


@dataclass(slots=True)
class Fleet:
    """One machine (`root` holds its home) that takes part in one run of the broker at `url`."""

    root: Path
    url: str
    data: Path
    config: Path
    run: str
    preload: str
    forks: ForkServer
    own_interpreters: bool = False  # of what runs in the background
    history: History = field(default_factory=lambda: History("none"))
    processes: dict[str, Process] = field(default_factory=dict)
    thaws: list[Callable[[], None]] = field(default_factory=list)
    leaving: set[str] = field(default_factory=set)  # these may end with another code than 0
    routes: dict[str, str] = field(default_factory=dict)  # by process: another way to the broker
    networks: dict[str, str] = field(default_factory=dict)  # by process: its network namespace
    variables: dict[str, str] = field(default_factory=dict)  # of every process, beside our own
    own: dict[str, dict[str, str]] = field(default_factory=dict)  # by process: variables of its own

    # -- commands that end ------------------------------------------------------------------------

    async def atoll(self, *arguments: str, within_s: float = 180.0, **env: str) -> Answer:
        """Run one command to its end; `env` is added to its environment."""
        began, folder = time.monotonic(), self.root / "commands"
        folder.mkdir(parents=True, exist_ok=True)
        out, err = (folder / f"{time.monotonic_ns()}.{name}" for name in ("out", "err"))
        process = self.forks.start(arguments, self.environment() | env, out, err)
        try:
            code = await self._until(process.poll, " ".join(arguments), within_s)
        finally:
            process.kill()
            process.wait()
        return Answer(code, out.read_text(), err.read_text(), time.monotonic() - began)

    async def create(self, *overrides: str) -> None:
        """`run create` of the fleet's configuration under its name, with overrides."""
        pairs = [f"name={self.run}", *overrides]
        options = [part for pair in pairs for part in ("--set", pair)]
        created = await self.atoll(
            "run", "create", str(self.config), "--data", str(self.data), *options
        )
        assert created.code == 0, created

    # -- processes that run -----------------------------------------------------------------------

    def coordinate(self, name: str = "coordinator") -> None:
        """Start a coordinator, or another one under another name."""
        self.start(name, "coordinate", self.run)

    def site(self, name: str, *options: str) -> None:
        """Start a site's hub, which starts its trainer."""
        data = () if "--data" in options else ("--data", str(self.data))
        self.start(name, "site", "run", self.run, name, *data, *options)

    def start(self, name: str, *arguments: str) -> None:
        """Start a command in the background, its output in the log of that name. It is ended with
        this process, whatever ends that."""
        assert self.processes.get(name) is None, f"{name} runs already"
        log, env = self.log_of(name), self.environment()
        env["ATOLL_BROKER"] = self.routes.get(name, self.url)
        env |= self.own.get(name, {})
        launch = start_anew if self.own_interpreters else self.forks.start
        self.processes[name] = launch(arguments, env, log, log, self.networks.get(name, ""))

    def kill(self, name: str) -> None:
        """SIGKILL to one process, which is waited for."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def kill_site(self, name: str) -> None:
        """SIGKILL to hub and trainer at once: a node fails."""
        self.kill_trainer(name)
        self.kill(name)

    def kill_trainer(self, name: str) -> bool:
        """SIGKILL to a site's trainer; False where it has none now."""
        pid = self.living_trainer(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def living_trainer(self, name: str) -> int | None:
        """A site's trainer. What the hub recorded may be old, and the number another process's by
        now: so it is looked at before it is believed."""
        try:
            pid = self.trainer_pid(name)
            return pid if b"sitehub" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (OSError, ValueError, TypeError):
            return None

    def signal(self, name: str, number: signal.Signals) -> None:
        """A signal to one process, which is expected to end by it."""
        self.processes[name].send_signal(number)
        self.leaving.add(name)

    def trainer_pid(self, site: str) -> int:
        """The process id of a site's trainer, as the hub recorded it."""
        return int(json.loads((self.site_home(site) / "site.json").read_text())["trainer_pid"])

    def freeze(self, name: str) -> Callable[[], None]:
        """Hub and trainer do nothing, as if the node hung; what returns lets them go on."""
        return self.suspend(self.processes[name].pid, self.living_trainer(name))

    def suspend(self, *processes: int | None) -> Callable[[], None]:
        """SIGSTOP to processes; what returns sends SIGCONT to them, once."""
        pids = [pid for pid in processes if pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            pids.clear()

        self.thaws.append(thaw)
        return thaw

    @contextlib.contextmanager
    def trainer_stopped(self, site: str) -> Iterator[None]:
        """A trainer that does nothing for a while, though its hub lives."""
        trainer = self.trainer_pid(site)
        os.kill(trainer, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(trainer, signal.SIGCONT)

    async def ended(self, name: str, within_s: float = _END_S) -> int:
        """Wait for a process to end by itself; its exit code."""
        process = self.processes[name]
        code = await self._until(process.poll, f"{name} to end", within_s)
        del self.processes[name]
        self.leaving.discard(name)
        return code

    async def finish(self, within_s: float = 30.0) -> None:
        """Stop the run, and have everyone leave it with 0. within_s: longer where blocks are."""
        stopped = await self.atoll("run", "stop", self.run)
        assert stopped.code == 0, stopped
        await self.until(
            lambda log: log.view.run().state == "finished", "the end of the run", within_s
        )
        for name in list(self.processes):
            assert await self.ended(name) == 0, f"{name}\n{self.said()}"

    async def audit(self, *options: str, target: str = "") -> dict[str, Any]:
        """What the audit of the run says, which must hold."""
        answer = await self.atoll("audit", target or self.run, "--json", *options)
        assert answer.code == 0, f"{answer.out}\n{answer.err}"
        found: dict[str, Any] = json.loads(answer.out)
        assert found["ok"] and not found["violations"]
        return found

    # -- waiting ----------------------------------------------------------------------------------

    async def until(
        self, holds: Callable[[History], object], what: str, within_s: float = 30.0
    ) -> None:
        """Wait until something holds of the log; fails after a bound, or when a process that
        should run has ended badly."""

        def found() -> bool | None:
            for name, process in self.processes.items():
                code = process.poll()
                good = code in (None, 0) or name in self.leaving
                assert good, f"{name} ended with {code} before {what}\n{self.said()}"
            return bool(holds(self.history)) or None

        await self._until(found, what, within_s)

    async def settled(self, quiet_s: float = 1.5) -> None:
        """Wait until nothing has been written for a moment, longer than a tick or heartbeat."""
        seen, since = -1, time.monotonic()

        def quiet(history: History) -> bool:
            nonlocal seen, since
            if history.last != seen:
                seen, since = history.last, time.monotonic()
            return time.monotonic() - since >= quiet_s

        await self.until(quiet, "silence", 20)

    async def _until(self, found: Callable[[], Any], what: str, within_s: float) -> Any:
        until = time.monotonic() + within_s
        while True:
            self.history.news.clear()
            if (result := found()) is not None:
                return result
            left_s = until - time.monotonic()
            assert left_s > 0, f"waited {within_s:g} s in vain for {what}\n{self.said()}"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.history.news.wait(), min(left_s, _LOOK_S))

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        for thaw in self.thaws:
            thaw()  # a trainer ends by itself when its hub is gone, but not while it hangs
        self.processes.clear()

    def said(self, num_lines: int = 15) -> str:
        """The end of every log, and of the run's."""
        parts = []
        for path in sorted(
            [*(self.root / "logs").glob("*"), *self.home.glob("sites/*/*/work/*.log")]
        ):
            lines = path.read_text(errors="replace").splitlines()[-num_lines:]
            parts += [f"--- {path.relative_to(self.root)}", *lines]
        parts.append("--- the run's log")
        for entry in self.history.entries[-2 * num_lines :]:
            parts.append(f"{entry.record.sequence} {entry.record.subject} {entry.event!r:.200}")
        return "\n".join(parts)

    @property
    def home(self) -> Path:
        return self.root / "home"

    def site_home(self, site: str) -> Path:
        """What a site keeps of the run on this machine."""
        return self.home / "sites" / self.run / site

    def elsewhere(self, root: Path) -> Fleet:
        """Another machine, that takes part in the same run."""
        other = Fleet(root, self.url, self.data, self.config, self.run, self.preload, self.forks)
        other.history = self.history
        return other

    def log_of(self, name: str) -> Path:
        folder = self.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def environment(self) -> dict[str, str]:
        return {
            PRELOAD_VARIABLE: self.preload,
            "ATOLL_BROKER": self.url,
            "ATOLL_HOME": str(self.home),
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            **self.variables,
        }
