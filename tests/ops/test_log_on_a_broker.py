"""`atoll log` on a run that a real broker keeps: show, tail, export, and a broker that is away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from ops import logfile
from ops.cli import run
from ops.connect import DEFAULT_URL, broker_url
from ops.home import Home
from tests.ops.test_log_command import EVENTS, payload

ROOT = Path(__file__).parent.parent.parent
ATOLL = [sys.executable, "-c", "from ops.cli import main; main()"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home, and no broker named in the environment."""
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATOLL_BROKER", raising=False)
    return Home.find()


@pytest.fixture
def server(home: Home) -> Iterator[BrokerServer]:
    """A broker that runs on the home, with the run `tests` of four events and a blob."""
    with BrokerServer(ServerSettings(home.broker)) as server:
        asyncio.run(fill(server.url, home.root / "content"))
        yield server


async def fill(url: str, content: Path) -> None:
    """Make the run, its events and a blob of 3 MB."""
    content.write_bytes(b"parameters" * 300_000)
    async with await connect(url, name="tests") as connection:
        log = await JetStreamLog.create(connection, "tests")
        blobs = await JetStreamBlobs.create(connection, "tests")
        for n, (subject, event) in enumerate(EVENTS, start=1):
            last = await log.last(subject)
            data = payload(event, n, subject=subject)
            await log.append(subject, [data], last.sequence if last else 0)
        await blobs.put(content)
        await log.close()
        await blobs.close()


def test_show_finds_the_broker_that_runs_on_this_home(server: BrokerServer, capsys) -> None:
    assert run(["log", "show", "tests", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["type"] for event in found] == [event.type for _, event in EVENTS]
    assert [event["sequence"] for event in found] == [1, 2, 3, 4]


def test_export_holds_all_events_and_with_blobs_all_blobs(
    server: BrokerServer, tmp_path: Path, capsys
) -> None:
    target = tmp_path / "exported.atoll"
    assert run(["log", "export", "tests", "-o", str(target), "--blobs", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    verdict = logfile.verify(target)
    assert verdict.problem is None
    assert (said["events"], verdict.last_sequence, verdict.num_blobs) == (4, 4, 1)
    assert said["log_digest"] == verdict.log_digest


def test_tail_begins_where_asked_and_prints_what_comes(server: BrokerServer) -> None:
    process = subprocess.Popen(
        [*ATOLL, "log", "tail", "tests", "--lines", "1", "--json"],
        cwd=ROOT,
        env=os.environ | {"ATOLL_BROKER": server.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["sequence"] == 4
        asyncio.run(append_a_tick(server.url))
        assert json.loads(process.stdout.readline())["sequence"] == 5
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.wait()


async def append_a_tick(url: str) -> None:
    """One more event of the coordinator."""
    async with await connect(url, name="tests") as connection:
        log = await JetStreamLog.open(connection, "tests")
        subject, event = EVENTS[1]
        last = await log.last(subject)
        assert last is not None
        await log.append(subject, [payload(event, 9)], last.sequence)
        await log.close()


def test_a_run_that_does_not_exist_is_usage_and_nothing_is_written(
    server: BrokerServer, home: Home, capsys
) -> None:
    for command in ("show", "tail", "export"):
        assert run(["log", command, "other"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "other" in line
    assert list((home.root / "exports").iterdir()) == []


def test_no_broker_at_the_url_is_code_4_in_one_line(home: Home, capsys) -> None:
    assert run(["log", "show", "tests", "--broker", "nats://127.0.0.1:1"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "nats://127.0.0.1:1" in line


def test_the_url_is_the_given_one_else_the_running_brokers_else_the_default(
    home: Home,
) -> None:
    assert broker_url(None, home) == DEFAULT_URL
    with BrokerServer(ServerSettings(home.broker)) as server:
        assert broker_url(None, home) == server.url
        assert broker_url("nats://elsewhere:1", home) == "nats://elsewhere:1"
    assert (
        broker_url(None, home) == DEFAULT_URL
    )  # it has ended, though its address still lies there


@pytest.mark.parametrize("after", [4, 5, 9999])
def test_behind_the_end_of_a_run_there_is_no_event_and_no_damage(
    server: BrokerServer, capsys, after: int
) -> None:
    assert run(["log", "show", "tests", "--after", str(after)]) == 0
    assert capsys.readouterr().err == "no event matches\n"
