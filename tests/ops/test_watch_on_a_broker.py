"""`atoll watch` on a run that a real broker keeps: how it stands, and what comes until its end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.server import BrokerServer
from broker.settings import ServerSettings
from ops.cli import run
from ops.home import Home
from tests.ops.watching import append, over, records

ROOT = Path(__file__).parent.parent.parent
ATOLL = [sys.executable, "-c", "from ops.cli import main; main()"]
HISTORY = records(over())
EARLY = 7  # events that the run has when it is first looked at: through the grant


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerServer]:
    """A broker that runs on an empty home, with the first events of the run `tests`."""
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATOLL_BROKER", raising=False)
    with BrokerServer(ServerSettings(Home.find().broker)) as server:
        asyncio.run(append(server.url, HISTORY[:EARLY], create=True))
        yield server


def test_a_run_is_shown_as_it_stands_now(server: BrokerServer, capsys) -> None:
    assert run(["watch", "tests", "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["last_sequence"]) == ("running", EARLY)
    assert found["sites"][0]["held"] == ["0:0"]
    assert found["sites"][0]["heard_s"] < 60


def test_a_run_that_does_not_exist_is_one_line(server: BrokerServer, capsys) -> None:
    assert run(["watch", "no-such-run"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1


def test_it_tells_what_comes_and_ends_by_itself_with_the_run(server: BrokerServer) -> None:
    process = subprocess.Popen(
        [*ATOLL, "watch", "tests", "--broker", server.url],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for _ in range(5):
            process.stdout.readline()
        assert "granted alpha 1 block" in process.stdout.readline()  # and not only at its end
        asyncio.run(append(server.url, HISTORY[EARLY:]))
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "finished the run at version 1, 32 tokens — target met" in out.splitlines()[-1]
    assert errors.splitlines() == [
        "run tests has finished: target met",
        "next: atoll eval tests --data DIR (how good the model is)",
        "next: atoll audit tests --deep (whether it is what the log says)",
    ]


def test_while_nothing_comes_it_says_once_what_to_do(server: BrokerServer) -> None:
    process = subprocess.Popen(
        [*ATOLL, "watch", "tests", "--broker", server.url],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        # the coordinator of this history says nothing more: K ticks of 2 s, then it is missed
        assert process.stderr.readline() == "next: atoll coordinate tests\n"
        asyncio.run(append(server.url, HISTORY[EARLY:]))
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert "next: atoll coordinate" not in errors and "has finished" in errors


def test_the_brokers_death_and_return_are_told_and_nobody_is_sent_for_a_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    with BrokerServer(ServerSettings(Home.find().broker)) as first:
        asyncio.run(append(first.url, HISTORY[:EARLY], create=True))
        url = first.url
        process = subprocess.Popen(
            [*ATOLL, "watch", "tests", "--broker", url],
            cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        for _ in range(6):
            process.stdout.readline()  # it has all that there is
    try:
        said = [process.stderr.readline().strip()]
        while "see to the broker" not in said[-1]:
            said.append(process.stderr.readline().strip())
        assert said[-2:] == [
            "the broker does not answer; trying again until it does",
            "next: see to the broker; where it ran, atoll broker serve starts it again",
        ]
        port = int(url.rpartition(":")[2])
        with BrokerServer(ServerSettings(Home.find().broker, port=port)) as again:
            assert again.url == url
            line = process.stderr.readline()
            assert line.startswith("the broker answers again, after ")
            asyncio.run(append(url, HISTORY[EARLY:]))
            _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and "has finished" in errors
    assert "atoll coordinate" not in "".join([*said, errors])
