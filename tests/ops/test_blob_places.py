"""Where a run's blobs are: its configuration says so, and every command finds them by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.config import RunConfig
from eventlog.events import OPERATOR
from eventlog.s3_blobs import ExtraMissing, S3Blobs
from eventlog.writer import Stamp, Writer
from ops.bench.desk import founding
from ops.connect import blobs_of, opened
from ops.exits import INVALID, code_of

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


@pytest.mark.parametrize("place", ["broker", "s3://bucket/prefix"])
async def test_whoever_opens_a_run_finds_its_blobs_by_its_first_event(
    server: BrokerServer, place: str
) -> None:
    run = f"run-{len(place)}"
    created = founding(quorum=1, blocks_per_round=1)
    event = created.model_copy(update={"config": created.config | {"blobs": place}})
    async with await connect(server.url, name="tests") as connection:
        log = await JetStreamLog.create(connection, run)
        await Writer(log, OPERATOR).append([event], Stamp())
        await blobs_of(connection, run, place, create=True)
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
