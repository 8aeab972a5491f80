"""P8: how long a blob may be is known before it is fetched: nobody makes the coordinator, a site or
an audit fetch terabytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from eventlog.blobs import Progress
from eventlog.dir_blobs import DirBlobs
from eventlog.events import DeltaRefused
from leases.sizes import most_bytes
from outer import codecs
from outer.deltahead import max_bytes, max_file_bytes
from tests.outer.test_verify import a_run, refused
from tests.support.coordinating import Site, World, entries, started

TERABYTES = 10**13
SHAPES = {"block": (3, 50), "chunk": (5000,), "empty": (0, 3), "one": (), "wide": (4096, 3)}
# of 150, 5000, 0, 1 and 12,288 numbers: bytes by the layouts of docs/codecs.md
NUMBERS = {"fp32": 4 * 17439, "bf16": 2 * 17439}


class Counting(DirBlobs):
    """A store that knows which of its blobs were asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    async def get(
        self,
        digest: str,
        target: Path,
        progress: Progress | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        self.asked.append(digest)
        await super().get(digest, target, progress, max_bytes=max_bytes)


@pytest.mark.parametrize("codec", sorted(codecs.CODECS))
def test_no_sound_delta_is_longer_than_the_bound_and_the_bound_is_tight(
    tmp_path: Path, codec: str
) -> None:
    chance = torch.Generator().manual_seed(3)
    values = {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}
    path = tmp_path / "delta"
    codecs.encode(values, codec, path)
    size = path.stat().st_size
    (head,) = struct.unpack("<Q", path.read_bytes()[:8])
    most = max_file_bytes(codec, values)
    assert size <= most
    assert most == size - head + max_bytes(values), "all but the head is known to the byte"
    assert codec not in NUMBERS or size - head - 8 == NUMBERS[codec]


async def refusal(world: World, **changes: object) -> tuple[DeltaRefused, str]:
    """What becomes of a delta that says this of itself; its blob."""
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        blocks = await site.train()
        sequence = await site.publish(blocks, **changes)
        await world.until(lambda: world.view.delta(sequence).state == "refused", "a refusal")
    (event,) = [one.event for one in entries(world) if isinstance(one.event, DeltaRefused)]
    return event, world.view.delta(sequence).blob


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"num_bytes": TERABYTES}, "10,000,000,000,000 bytes"), ({"codec": "fp7"}, "codec 'fp7'")],
)
async def test_what_cannot_be_true_of_a_delta_is_refused_and_not_fetched(
    tmp_path: Path, changes: dict[str, object], word: str
) -> None:
    world = await started(tmp_path, {"rounds": 3})
    store = world.blobs = Counting(tmp_path / "blobs")
    event, blob = await refusal(world, **changes)
    assert (event.code, event.values) == ("form", True)
    assert word in event.reason and "\n" not in event.reason
    fetched_by_the_test = 1  # for the norms that it announces
    assert store.asked.count(blob) == fetched_by_the_test


async def test_a_blob_that_is_longer_than_it_was_said_to_be_is_refused_and_not_fetched(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 3})
    event, blob = await refusal(world, num_bytes=40)
    size = (world.blobs.path / blob).stat().st_size
    assert (event.code, event.values) == ("form", True)
    assert f"has {size:,} bytes, at most 40" in event.reason
    folder = tmp_path / "coordinator-1"
    assert not [path for path in folder.iterdir() if path.name.startswith(blob)]


@pytest.mark.parametrize("num_bytes", [1, TERABYTES])
async def test_the_deep_audit_comes_to_the_same_verdict(tmp_path: Path, num_bytes: int) -> None:
    found = await refused(await a_run(tmp_path), "form", num_bytes=num_bytes)
    assert found.ok, found.what
    other = tmp_path / "other"
    other.mkdir()
    found = await refused(await a_run(other), "blob", num_bytes=num_bytes)
    assert "is refused as 'blob', should have been as 'form'" in found.what


async def test_versions_are_as_long_as_announced_and_never_longer_than_the_model_needs(
    tmp_path: Path,
) -> None:
    real = await a_run(tmp_path)
    db, num = real.projection.db, real.view.run().num_parameters
    two = real.view.version(2)
    for blob in (two.update_blob, two.snapshot_blob):
        assert most_bytes(db, blob) == (real.store.path / blob).stat().st_size
    assert most_bytes(db, real.view.run().parameters_blob) == 8 * num + 2**20
    assert most_bytes(db, "0" * 64) is None
    db.execute("UPDATE versions SET update_bytes = ?, snapshot_bytes = ?", (TERABYTES, TERABYTES))
    assert most_bytes(db, two.update_blob) == 8 * num + 2**20
    assert most_bytes(db, two.snapshot_blob) == 24 * num + 2**20
