"""`atoll audit RUN`: the log and the blobs come from the broker; what it lacks is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from ops.cli import run
from ops.home import Home
from tests.leases.stories import delivered


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerServer]:
    """A broker on an empty home, with a run of two sites that have delivered and no blobs."""
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATOLL_BROKER", raising=False)
    with BrokerServer(ServerSettings(Home.find().broker)) as server:
        asyncio.run(fill(server.url))
        yield server


async def fill(url: str) -> None:
    """The events of the story, appended by their writers in the order of the story."""
    async with await connect(url, name="tests") as connection:
        log = await JetStreamLog.create(connection, "tests")
        blobs = await JetStreamBlobs.create(connection, "tests")
        last: dict[str, int] = {}
        for record in await delivered().log.read(0, limit=10_000):
            expected = last.get(record.subject, 0)
            last[record.subject] = await log.append(record.subject, [record.payload], expected)
        await log.close()
        await blobs.close()


def test_a_run_is_audited_from_its_broker(server: BrokerServer, capsys) -> None:
    assert run(["audit", "tests", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["ok"], found["versions"]) == ("tests", True, 0)
    assert (found["blocks_granted"], found["epochs"][0]["open"]) == (3, 6)


def test_deep_says_where_it_cannot_judge(server: BrokerServer, capsys) -> None:
    assert run(["audit", "tests", "--deep"]) == 3  # the story's arithmetic is no machine's
    assert "arithmetic differs" in capsys.readouterr().err


@pytest.mark.parametrize(("target", "broker", "code"), [("nobody", None, 2), ("tests", 1, 4)])
def test_what_cannot_be_audited_is_one_line(
    server: BrokerServer, capsys, target: str, broker: int | None, code: int
) -> None:
    options = [] if broker is None else ["--broker", f"nats://127.0.0.1:{broker}"]
    assert run(["audit", target, *options]) == code
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
