"""`atoll ARGUMENTS` as a process of its own, forked from a parent that has paid for the imports.

A test with real processes starts dozens of them; on two cores the imports of each would cost more
than all that is tested. What is forked runs the command line as `python -m ops` does, in a session
of its own, and is killed by its pid like any other process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.deathsig import arm, death_signal
from tests.support.netns import inside

CHECKOUT = Path(__file__).parents[2]
_POLL_S = 0.02
_CLONE_NEWNET = 0x40000000
_MODULES = (
    *("ops.commands." + name for name in ("audit", "coordinate", "data", "log", "run", "site")),
    *("ops.auditing", "ops.connect", "ops.folded", "ops.founding", "ops.logfile", "ops.signals"),
    *("outer.coordinator", "outer.verify", "outer.workshop", "sitehub.build", "sitehub.hub"),
    *("torch", "transformers", "transformers.models.qwen3.modeling_qwen3"),
)


class Forked:
    """One process: the part of `subprocess.Popen` that tests need."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.returncode = sock, None
        self.pid = int(json.loads(_line(sock))["pid"])

    def poll(self) -> int | None:
        """Its exit code, -n where signal n ended it; None while it runs."""
        if self.returncode is None and select.select([self._sock], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._sock], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _take(self) -> None:
        self.returncode = int(json.loads(_line(self._sock))["returncode"])
        self._sock.close()


class ForkServer:
    """The parent, for as long as the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._path, self._log = folder / "s", folder / "log"

    def __enter__(self) -> ForkServer:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forkserver", str(self._path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
                start_new_session=True,
            )
        until = time.monotonic() + 600
        while not self._path.exists():
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        out: Path,
        err: Path,
        network: str = "",
    ) -> Forked:
        """Start `atoll ARGUMENTS` with `env` added, its output appended to two files; in a network
        namespace that `ip netns` has made, where one is named."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(self._path))
        request = {"argv": list(arguments), "env": dict(env), "out": str(out), "err": str(err)}
        request["network"] = network
        sock.sendall(json.dumps(request).encode() + b"\n")
        return Forked(sock)


def start_anew(
    arguments: Sequence[str], env: Mapping[str, str], out: Path, err: Path, network: str = ""
) -> subprocess.Popen[bytes]:
    """The same in a Python of its own, as an operator starts it."""
    within = inside(network) if network else []
    prctl, parent = death_signal(), os.getpid()
    with out.open("ab") as output, err.open("ab") as talk:
        return subprocess.Popen(
            [*within, sys.executable, "-m", "ops", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=talk,
            env={**os.environ, **env},
            cwd=CHECKOUT,
            start_new_session=True,
            preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
        )


def _line(sock: socket.socket) -> bytes:
    """Up to the next newline, and no byte more."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        assert byte, f"the fork server hung up after {line!r}"
        line += byte
    return line


# -- the parent -----------------------------------------------------------------------------------


def _serve(listener: socket.socket) -> None:
    """Fork on request and tell who asked how it ended, until stdin closes."""
    children: dict[int, socket.socket] = {}
    prctl, parent = death_signal(), os.getpid()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [], _POLL_S)
        if sys.stdin in ready:
            return
        if listener in ready:
            client, _ = listener.accept()
            request = json.loads(_line(client))
            pid = os.fork()
            if pid == 0:
                listener.close()
                for other in (client, *children.values()):
                    other.close()
                if prctl is not None:
                    arm(prctl, parent)
                _become(request)
            children[pid] = client
            client.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        _reap(children)


def _reap(children: dict[int, socket.socket]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = {"returncode": os.waitstatus_to_exitcode(status)}
            with children.pop(pid) as client:
                try:
                    client.sendall(json.dumps(code).encode() + b"\n")
                except OSError:
                    continue  # the test that asked has failed and gone


def _become(request: dict[str, Any]) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        null = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(request[name], flags, 0o644) for name in ("out", "err"))
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        os.environ.update(request["env"])
        if request["network"]:
            _enter(request["network"])
        from ops import cli

        code = cli.run(request["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _enter(network: str) -> None:
    """Go into a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", network).open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {network}")


def _main(path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _MODULES:
        importlib.import_module(module)
    gc.freeze()
    part = path.with_name(path.name + "p")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(part))
        listener.listen(16)
        part.rename(path)
        _serve(listener)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
