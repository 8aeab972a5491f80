"""`atoll broker serve` with real processes: ready when it says so, gone when it is told to go."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli import run
from ops.commands.broker import Health

ROOT = Path(__file__).parent.parent.parent
SERVE = [sys.executable, "-c", "from ops.cli import main; main()", "broker", "serve", "--json"]


def serve(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the command on a store directory."""
    return subprocess.Popen(
        [*SERVE, "--dir", str(folder), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def address(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Host and port that the command printed when it was ready."""
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    host, _, port = url.removeprefix("nats://").partition(":")
    return host, int(port)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = serve(tmp_path / "store")
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_is_ready_when_it_prints_its_url_and_gone_after_a_signal(
    serving: subprocess.Popen[str], number: int, code: int
) -> None:
    where = address(serving)
    with socket.create_connection(where, timeout=5) as connection:
        assert connection.recv(5) == b"INFO "  # a NATS server speaks first
    serving.send_signal(number)
    _, said = serving.communicate(timeout=30)
    assert serving.returncode == code, said
    assert "Traceback" not in said
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, timeout=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_it_serves_a_signal_interrupts_nothing_and_a_second_insists(number: int) -> None:
    program = (
        "import os, sys; from ops.signals import noted\n"
        "number = int(sys.argv[1]); told = noted(); os.kill(os.getpid(), number)\n"
        "print(told, flush=True)\n"
        "os.kill(os.getpid(), number); print('still here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(int(number))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (f"[{number:d}]\n", 128 + number), done.stderr


def test_one_that_listens_on_every_address_says_how_others_name_it(tmp_path: Path) -> None:
    command = [part for part in SERVE if part != "--json"]
    process = subprocess.Popen(
        [*command, "--dir", str(tmp_path / "store"), "--host", "0.0.0.0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert f"from elsewhere it is {url.replace('0.0.0.0', 'HOST')}, HOST a name" in said


def test_a_second_broker_on_one_directory_is_refused_as_temporary(
    serving: subprocess.Popen[str], tmp_path: Path
) -> None:
    address(serving)
    second = serve(tmp_path / "store")
    out, said = second.communicate(timeout=30)
    assert (second.returncode, out, len(said.splitlines())) == (75, "", 1)
    assert "already" in said


def test_a_taken_port_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = serve(tmp_path / "store", "--port", str(port))
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out, len(said.splitlines())) == (3, "", 1)
    assert str(port) in said and "in use" in said


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_there_is_not_is_usage(tmp_path: Path, port: str) -> None:
    process = serve(tmp_path / "store", "--port", port)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert not (tmp_path / "store").exists()


def test_a_server_that_is_unwell_for_one_look_is_not_said_to_be() -> None:
    health = Health()
    looks = ["", "a stream is made", "", "full", "full", "fuller", ""]
    assert [health.see(one) for one in looks] == [
        *[""] * 4,
        "the broker is not well: full",
        "the broker is not well: fuller",
        "the broker is well again",
    ]


def test_who_gives_no_credentials_to_a_configured_broker_is_told_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path))
    for name in ("ATOLL_BROKER", "ATOLL_CREDS"):
        monkeypatch.delenv(name, raising=False)
    assert run(["broker", "config", str(tmp_path / "broker"), "--host", "localhost"]) == 0
    capsys.readouterr()
    assert run(["broker", "add-site", "alpha"]) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert "it knows it when it starts" in told
    assert run(["run", "list"]) == 3
    (told,) = capsys.readouterr().err.splitlines()
    (kept,) = (tmp_path / "broker" / "credentials").glob("operator-*")
    assert "--creds" in told and told.endswith(str(kept)) and "broker serve" not in told
