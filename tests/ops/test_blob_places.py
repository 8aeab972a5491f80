"""Where a run's blobs are: its configuration says so, and every command finds them by it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog, list_runs
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.codec import content_digest
from eventlog.config import RunConfig
from eventlog.events import OPERATOR
from eventlog.s3_blobs import ExtraMissing, S3Blobs
from eventlog.writer import Stamp, Writer
from ops.bench.desk import founding
from ops.cli import run as atoll
from ops.connect import blobs_of, opened
from ops.exits import INVALID, code_of
from sitehub.build import Options, build
from sitehub.sources import folder
from tests.ops.test_run_create import CONFIG
from tests.support.text import write_text

MINIMAL = {"name": "r", "target": {"rounds": 1}, "data": {}, "model": {"model_type": "qwen3"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with BrokerServer(ServerSettings(tmp_path_factory.mktemp("broker"))) as server:
        yield server


@pytest.mark.parametrize("place", ["broker", "s3://bucket", "s3://bucket/deep/prefix"])
def test_a_place_of_blobs_is_the_broker_or_a_bucket(place: str) -> None:
    assert RunConfig.model_validate(MINIMAL | {"blobs": place}).blobs == place


@pytest.mark.parametrize(
    "place", ["", "s3://", "/tmp/blobs", "s3://key:secret@host/bucket", "s3://b/x?token=1", "s3:b"]
)
def test_no_other_place_and_no_credentials_in_one(place: str) -> None:
    with pytest.raises(ValueError, match="blobs"):
        RunConfig.model_validate(MINIMAL | {"blobs": place})


async def create(server: BrokerServer, run: str, place: str) -> None:
    created = founding(quorum=1, blocks_per_round=1)
    content = created.config | {"blobs": place}
    event = created.model_copy(update={"config": content, "config_digest": content_digest(content)})
    async with await connect(server.url, name="tests") as connection:
        log = await JetStreamLog.create(connection, run)
        await Writer(log, OPERATOR).append([event], Stamp())
        await blobs_of(connection, run, place, create=True)


@pytest.mark.parametrize("place", ["broker", "s3://bucket/prefix"])
async def test_whoever_opens_a_run_finds_its_blobs_by_its_first_event(
    server: BrokerServer, place: str
) -> None:
    run = f"run-{len(place)}"
    await create(server, run, place)
    async with opened(run, server.url) as (_, blobs, _):
        assert isinstance(blobs, JetStreamBlobs if place == "broker" else S3Blobs)
        assert place == "broker" or getattr(blobs, "_url", "") == f"{place}/{run}"


async def test_a_run_in_s3_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ExtraMissing, match=r"install atoll\[s3\]") as caught:
        await S3Blobs("s3://bucket/run").digests()
    assert code_of(caught.value) == INVALID


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    build([folder(write_text(root / "text"))], root / "tokens", Options(16, 300))
    return root / "tokens"


@pytest.fixture
def nobody(server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no credentials of any kind, and uses this broker."""
    pytest.importorskip("obstore", reason="atoll[s3] is not installed")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATOLL_BROKER", server.url)


async def runs(server: BrokerServer) -> list[str]:
    async with await connect(server.url, name="tests") as connection:
        return list(await list_runs(connection))


def test_a_run_in_s3_is_not_created_without_credentials_and_nothing_is_left_of_it(
    server: BrokerServer, nobody: None, data: Path, tmp_path: Path, capsys
) -> None:
    config = tmp_path / "small.toml"
    config.write_text(CONFIG.replace("DATA", str(data)))
    options = ["--set", "name=nowhere", "--set", "blobs=s3://bucket/prefix"]
    assert atoll(["run", "create", str(config), *options]) == INVALID
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("atoll: the blobs at s3://bucket/prefix need credentials, and there are")
    assert "nowhere" not in asyncio.run(runs(server))


def test_whoever_moves_blobs_says_so_at_once_and_whoever_does_not_goes_on(
    server: BrokerServer, nobody: None, data: Path, tmp_path: Path, capsys
) -> None:
    asyncio.run(create(server, "far", "s3://bucket/prefix"))
    for command in (
        ["coordinate", "far"],
        ["site", "run", "far", "alpha", "--data", str(data)],
        ["eval", "far", "--data", str(data)],
        ["audit", "far", "--deep"],
        ["log", "export", "far", "--blobs"],
    ):
        assert atoll(command) == INVALID, command
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("atoll: the blobs at s3://bucket/prefix need credentials"), command
    for command in (
        ["run", "show", "far"],
        ["watch", "far", "--once"],
        ["audit", "far"],
        ["log", "export", "far"],
        ["run", "stop", "far"],
    ):
        assert atoll(command) == 0, command
