"""Our own nats-server: one process on one store directory, for as long as it lives.

Two servers on one directory would both acknowledge the same sequence. So the lock of the directory
(flock on a file descriptor) is handed to the server process itself: it lives exactly as long as the
server does, also when whoever started it is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from broker import monitor
from broker.binary import find_binary
from broker.deathsig import arm, death_signal
from broker.errors import BrokerUnfit
from broker.settings import ServerSettings, render
from eventlog.errors import LockHeld

_PORT_TRIES = 4
_POLL_S = 0.02


class BrokerServer:
    """Starts, watches and stops one nats-server. Use as a context manager, or `start` and `stop`.

    die_with_parent (Linux): the server ends when the thread that called `start` ends, so call it
    from one that lives as long as the process.
    """

    def __init__(self, settings: ServerSettings, *, die_with_parent: bool = False) -> None:
        self.settings = settings
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = (0, 0)

    @property
    def url(self) -> str:
        """Where clients connect."""
        settings = self.settings
        return f"{settings.scheme}://{settings.host}:{self._ports[0]}"

    @property
    def monitor_url(self) -> str:
        """Where `/healthz` and `/varz` answer, on this machine only."""
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """The server's process id; 0 while none was started."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Return when the server is ready to serve its streams.

        Raises LockHeld where a server runs on this directory, BrokerUnfit with the server's own
        words where it does not come up.
        """
        if self.running:
            return
        binary, settings = find_binary(), self.settings
        settings.store_dir.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(settings)
        try:
            for last_try in [False] * (_PORT_TRIES - 1) + [True]:
                self._ports = _choose_ports(settings)
                self._write_address()  # of no process yet: the last one's number is another's now
                log_start = self._spawn(binary, lock)
                if self._wait_ready(log_start, last_try):
                    break
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(lock)  # from here on the lock is the server's alone
        self._write_address()

    def stop(self) -> None:
        """End the server: SIGTERM, and SIGKILL after a bound. Without a server it does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self.settings.stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash of the machine's process would do."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Block until the server ends by itself; its exit code, or None where it still runs."""
        try:
            return self._process.wait(timeout_s) if self._process else 0
        except subprocess.TimeoutExpired:
            return None

    def trouble(self) -> str:
        """What the server's own health check says; '' where it is well."""
        try:
            monitor.ask(f"{self.monitor_url}/healthz", 5.0)
        except OSError as error:
            return monitor.said(error)
        return ""

    def __enter__(self) -> BrokerServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self, binary: Path, lock: int) -> int:
        """Start the process; how long its log was before."""
        settings, parent = self.settings, os.getpid()
        if not settings.written:
            settings.config_file.write_text(render(settings, *self._ports), "ascii")
        prctl = death_signal() if self._die_with_parent else None
        with settings.log_file.open("ab") as log:
            start = log.tell()
            self._process = subprocess.Popen(
                [binary, "-c", settings.config_file.resolve()],
                cwd=settings.store_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for whoever started it, who stops it in turn
                preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
            )
        return start

    def _wait_ready(self, log_start: int, last_try: bool) -> bool:
        """True once healthy; False where the port was taken meanwhile and another may be free."""
        deadline = time.monotonic() + self.settings.start_s
        process = self._process
        while process is not None and time.monotonic() < deadline:
            if process.poll() is not None:
                said = self._said(log_start)
                if "address already in use" in said and not last_try and not self.settings.port:
                    return False
                raise BrokerUnfit(f"nats-server ended with {process.returncode}: {said}")
            if self._healthy():
                return True
            time.sleep(_POLL_S)
        raise BrokerUnfit(
            f"nats-server was not ready within {self.settings.start_s:g} s: {self._said(log_start)}"
        )

    def _healthy(self) -> bool:
        """Of one server in a cluster that only just starts, no more than its own part."""
        part = "?js-server-only=true" if self.settings.num_servers > 1 else ""
        try:
            monitor.ask(f"{self.monitor_url}/healthz{part}", 2.0)
        except OSError:
            return False
        return True

    def _said(self, start: int) -> str:
        """The errors in this start's part of the log, or its last lines, as one line."""
        with self.settings.log_file.open("rb") as file:
            file.seek(start)
            lines = file.read(64 << 10).decode(errors="replace").splitlines()
        grave = [line for line in lines if "[ERR]" in line or "[FTL]" in line] or lines
        return f"{' | '.join(grave[-3:]) or 'it said nothing'} (see {self.settings.log_file})"

    def _write_address(self) -> None:
        port, monitor_port = self._ports
        address = {"url": self.url, "port": port, "monitor_port": monitor_port, "pid": self.pid}
        part = self.settings.address_file.with_suffix(".part")
        part.write_text(json.dumps(address))
        os.replace(part, self.settings.address_file)


def read_address(store_dir: Path) -> dict[str, object] | None:
    """What the newest server on this directory wrote: url, port, monitor_port, pid; or None."""
    try:
        address = json.loads(ServerSettings(store_dir).address_file.read_text())
    except (OSError, ValueError):
        return None
    return address if isinstance(address, dict) else None


def lock_folder(settings: ServerSettings) -> int:
    """The lock of a broker's folder, as a descriptor that holds it until it is closed. Raises
    LockHeld."""
    handle = os.open(settings.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        address = read_address(settings.store_dir) or {}
        raise LockHeld(
            f"a broker runs on {settings.store_dir} already (process {address.get('pid', '?')}, "
            f"{address.get('url', 'url unknown')}); use that one, or stop it first"
        ) from error
    return handle


def _choose_ports(settings: ServerSettings) -> tuple[int, int]:
    """The fixed ports; else those of the last time, so that clients find us again; else free."""
    before = read_address(settings.store_dir) or {}
    if settings.monitor_port:
        _check_free("127.0.0.1", settings.monitor_port)
    if settings.written:
        return settings.port, settings.monitor_port
    port = settings.port or _free(settings.host, before.get("port"))
    monitor = settings.monitor_port or _free("127.0.0.1", before.get("monitor_port"))
    return port, monitor


def _check_free(host: str, port: int) -> None:
    """Raises BrokerUnfit where somebody listens there: it would tell the health of another server,
    and what that one holds, for ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise BrokerUnfit(
                f"the server cannot tell its health at {host}:{port}: {why}. Another broker here? "
                "`atoll broker config ... --monitor-port N` gives this one another port"
            ) from error


def _free(host: str, wish: object) -> int:
    for port in (wish, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                if isinstance(port, int):
                    probe.bind((host, port))
                    return int(probe.getsockname()[1])
            except OSError as error:
                why = error.strerror or str(error)
    raise BrokerUnfit(f"nothing can listen on {host}: {why}")
