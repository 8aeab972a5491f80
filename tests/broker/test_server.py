"""Our own nats-server: one a directory, ready when it says so, gone when it should be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.binary import find_binary
from broker.connection import check_server, connect
from broker.errors import BrokerUnfit
from broker.server import BrokerServer, read_address
from broker.settings import ServerSettings
from eventlog.errors import LockHeld

PARENT = """
import sys, time
from pathlib import Path
from broker.server import BrokerServer
from broker.settings import ServerSettings
server = BrokerServer(ServerSettings(Path(sys.argv[1])), die_with_parent=sys.argv[2] == "die")
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts a server from a process that is then SIGKILLed; the server's pid."""
    pids: list[int] = []

    def start(mode: str) -> int:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path / "store"), mode],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert parent.stdout is not None
        pids.append(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        parent.stdout.close()
        return pids[-1]

    yield start
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_second_server_on_a_directory_is_refused(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path)
    with BrokerServer(settings) as first:
        with pytest.raises(LockHeld, match=f"process {first.pid}"):
            BrokerServer(settings).start()
        assert first.running
    with BrokerServer(settings) as again:
        assert again.running


def test_a_server_whose_parent_was_killed_keeps_the_lock_while_it_lives(
    tmp_path: Path, orphan: Callable[[str], int]
) -> None:
    pid = orphan("stay")
    time.sleep(0.2)
    assert alive(pid)
    server = BrokerServer(ServerSettings(tmp_path / "store"))
    with pytest.raises(LockHeld, match=str(pid)):
        server.start()
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(pid))
    with server:
        assert server.running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_an_embedded_server_ends_with_its_parent(orphan: Callable[[str], int]) -> None:
    pid = orphan("die")
    assert wait_until(lambda: not alive(pid))


def test_a_restart_on_the_same_directory_has_the_same_address(tmp_path: Path) -> None:
    server = BrokerServer(ServerSettings(tmp_path))
    server.start()
    url = server.url
    address = read_address(tmp_path)
    assert address is not None
    assert (address["url"], address["pid"]) == (url, server.pid)
    server.kill()
    assert not server.running
    server.start()
    assert server.url == url
    server.stop()


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        (tmp_path / "broker.json").write_text(json.dumps({"port": taken}))
        with BrokerServer(ServerSettings(tmp_path)) as server:
            assert server.url != f"nats://127.0.0.1:{taken}"


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = ServerSettings(tmp_path, port=other.getsockname()[1])
        server = BrokerServer(settings)
        with pytest.raises(BrokerUnfit, match="address already in use") as caught:
            server.start()
    assert "\n" not in str(caught.value)
    assert not server.running


def test_the_health_of_another_server_is_not_taken_for_its_own(
    broker: BrokerServer, tmp_path: Path
) -> None:
    """It would be ready before it ends, and write down what the other one holds as its own."""
    taken = int(broker.monitor_url.rpartition(":")[2])
    server = BrokerServer(ServerSettings(tmp_path, monitor_port=taken))
    with pytest.raises(BrokerUnfit, match=f"127.0.0.1:{taken}.*--monitor-port"):
        server.start()
    assert not server.running and not server.settings.address_file.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo nats-server: v2.11.9", "2.12.0 or newer"), ("echo hello", "is no nats-server")],
)
def test_another_program_than_a_new_enough_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("ATOLL_NATS_SERVER", str(program))
    with pytest.raises(BrokerUnfit, match=reason):
        BrokerServer(ServerSettings(tmp_path / "store")).start()
    monkeypatch.setenv("ATOLL_NATS_SERVER", str(tmp_path / "missing"))
    with pytest.raises(BrokerUnfit, match="does not run"):
        BrokerServer(ServerSettings(tmp_path / "store")).start()


async def test_our_server_syncs_before_it_acknowledges(broker: BrokerServer) -> None:
    async with await connect(broker.url, name="tests") as connection:
        assert await check_server(connection, broker.monitor_url) == []
        (warning,) = await check_server(connection)
        assert "sync_interval: always" in warning


async def test_a_server_that_does_not_sync_always_is_refused(tmp_path: Path) -> None:
    server = BrokerServer(ServerSettings(tmp_path))
    server.start()
    config, url, monitor_url = server.settings.config_file, server.url, server.monitor_url
    server.stop()
    config.write_text(config.read_text().replace("sync_interval: always", ""))
    lax = subprocess.Popen(
        [find_binary(), "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = int(url.rpartition(":")[2])
        assert wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        async with await connect(url, name="tests") as connection:
            with pytest.raises(BrokerUnfit, match="before they are on the disk"):
                await check_server(connection, monitor_url)
    finally:
        lax.kill()
        lax.wait()


def test_a_path_in_any_script_and_with_any_sign_holds_a_broker(tmp_path: Path) -> None:
    store = tmp_path / 'Läufe ☃ "so" \\n $HOME # {x}' / os.fsdecode(b"\xff\xfe")
    with BrokerServer(ServerSettings(store)) as server:
        assert server.running
        assert (store / "jetstream").is_dir()


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with BrokerServer(ServerSettings(tmp_path / "store", start_s=10.0)) as server:
        assert server.running
