"""What an operator asks of a run in a state where it means nothing: said, and not written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.connection import connect
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.codec import decode
from ops import exits
from ops.cli import run
from ops.home import Home
from tests.ops.watching import append, at_work, over, records
from tests.support.scenario import Scenario

ASKING = (
    ["run", "stop", "tests"],
    ["run", "pause", "tests"],
    ["run", "resume", "tests"],
    ["site", "drain", "tests", "alpha"],
)
Serve = Callable[[Scenario], BrokerServer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A broker on an empty home; called with a history, it holds that as the run `tests`."""
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATOLL_BROKER", raising=False)
    with BrokerServer(ServerSettings(Home.find().broker)) as server:

        def hold(scenario: Scenario) -> BrokerServer:
            asyncio.run(append(server.url, records(scenario), create=True))
            return server

        yield hold


def types(server: BrokerServer) -> list[str]:
    """The types of all events that the run has."""

    async def read() -> list[str]:
        async with await connect(server.url, name="tests") as connection:
            log = await JetStreamLog.open(connection, "tests")
            found = [decode(record).envelope for record in await log.read(0)]
            await log.close()
            return [envelope.type for envelope in found if envelope]

    return asyncio.run(read())


def test_a_finished_run_takes_no_request(serve: Serve, capsys) -> None:
    server = serve(over())
    before = types(server)
    for command in ASKING:
        assert run(command) == exits.USAGE
        says = "run tests: the run is finished already (target met); nothing was written"
        assert capsys.readouterr().err == f"atoll: {says}\n"
    assert types(server) == before


def test_of_what_is_so_already_nothing_is_written(serve: Serve, capsys) -> None:
    server = serve(at_work())
    refused = {
        ("run", "resume", "tests"): "the run is running, not paused",
        ("site", "drain", "tests", "gamma"): "no live site gamma",
        ("site", "drain", "tests", "nobody"): "no live site nobody",
    }
    before = types(server)
    for command, says in refused.items():
        assert run(command) == exits.USAGE
        assert f"run tests: {says}; nothing was written" in capsys.readouterr().err
    assert types(server) == before
    for command, says, event in (
        (("site", "drain", "tests", "beta"), "beta is asked to leave already", "drain_requested"),
        (("run", "pause", "tests"), "the run is paused, not running", "paused"),
        (("run", "stop", "tests"), "the run is stopping already", "stopped"),
    ):
        assert run(command) == 0
        before.append(f"run.{event}")
        assert run(command) == exits.USAGE
        assert says in capsys.readouterr().err
        assert types(server) == before
    assert run(["run", "pause", "tests"]) == exits.USAGE
    assert "the run is stopping, not running (the operator stopped it)" in capsys.readouterr().err
    assert types(server) == before
