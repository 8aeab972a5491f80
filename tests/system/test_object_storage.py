"""A run whose blobs are in object storage: every command finds them there, and none elsewhere."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from eventlog.errors import RunUnknown
from eventlog.events import BlobsReleased, RunFinished, SnapshotSaved
from leases import retention
from tests.support.objects import object_storage
from tests.support.server import Served
from tests.system.conftest import MakeFleet

pytest.importorskip("obstore", reason="atoll[s3] is not installed")
pytest.importorskip("moto", reason="atoll[dev] is not installed")

SETTINGS = (
    "outer.overlap=delayed",
    "outer.delta_codec=4-bit",
    "outer.update_codec=4-bit",
    "snapshots.every_versions=2",
    "snapshots.retention=recovery",
)


async def test_a_run_lives_in_object_storage_from_its_creation_to_its_audit(
    make_fleet: MakeFleet, broker: Served, tmp_path: Path
) -> None:
    with object_storage() as environment:
        fleet = await make_fleet(broker, "blobs=s3://runs/some/where", *SETTINGS, **environment)
        log = fleet.history
        fleet.coordinate()
        fleet.site("alpha")
        fleet.site("beta", "--max-rate", "50MB")
        await fleet.until(lambda log: log.of(SnapshotSaved), "a snapshot", 60)
        fleet.kill("coordinator")
        fleet.coordinate("successor")
        fleet.kill_site("beta")
        fleet.site("beta")
        at = log.last
        await fleet.until(lambda log: log.of(BlobsReleased, after=at), "a release", 60)
        await fleet.until(lambda log: log.new_versions(at) >= 4, "four versions more", 60)
        await fleet.finish()

        digest = log.of(RunFinished)[0][1].parameters_digest
        for version in ("", "--version=" + str(log.view.run().version)):
            options = [fleet.run, "--data", str(fleet.data), "--json", *filter(None, [version])]
            assert math.isfinite((await fleet.atoll("eval", *options)).json()["loss"])
        found = await fleet.audit("--deep")
        assert found["model_digest"] == digest
        file = tmp_path / "run.atoll"
        exported = await fleet.atoll(
            "log", "export", fleet.run, "--blobs", "-o", str(file), "--json"
        )
        assert exported.json()["blobs"] >= len(retention.recovered(log.view.db))
        fleet.variables = {}
        assert (await fleet.audit("--deep", target=str(file)))["model_digest"] == digest
        log_of_run = "".join(repr(entry.record.payload) for entry in log.entries)
        assert environment["AWS_SECRET_ACCESS_KEY"] not in log_of_run
    async with await connect(broker.url, name="test") as connection:
        with pytest.raises(RunUnknown):
            await JetStreamBlobs.open(connection, fleet.run)
