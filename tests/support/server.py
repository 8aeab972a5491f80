"""A broker as its operator runs it: `atoll broker serve`, killed and started again by tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from broker.deathsig import arm, death_signal


class Served:
    """`atoll broker serve` on a directory. `url` stays the same over restarts."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.folder, self.host, self.url = folder, host, ""
        self._process: subprocess.Popen[str] | None = None
        self.pid = 0  # of the nats-server

    def start(self) -> None:
        """Returns once it is ready."""
        prctl, parent = death_signal(), os.getpid()
        arguments = [sys.executable, "-m", "ops", "broker", "serve", "--json"]
        arguments += ["--host", self.host, "--dir"]
        with self.folder.with_name(self.folder.name + ".log").open("ab") as talk:
            self._process = subprocess.Popen(
                [*arguments, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=talk,
                text=True,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
                preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
            )
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        assert self.url in ("", said["url"]), "it came back elsewhere"
        self.url, self.pid = said["url"], said["pid"]

    def streams(self) -> dict[str, tuple[int, int]]:
        """(messages, last sequence) of every stream, as the server's own monitor says."""
        port = json.loads((self.folder / "broker.json").read_text())["monitor_port"]
        query = f"http://127.0.0.1:{port}/jsz?streams=true&limit=10000"
        with urllib.request.urlopen(query, timeout=10) as answer:
            accounts = json.load(answer)["account_details"]
        return {
            stream["name"]: (stream["state"]["messages"], stream["state"]["last_seq"])
            for account in accounts
            for stream in account["stream_detail"]
        }

    def kill(self) -> None:
        """SIGKILL to the server and to the command that looks after it."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM to the command, which stops the server well; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None and self._process.stdout is not None
        code = self._process.wait(20)
        self._process.stdout.close()
        self._process = None
        return code
