"""The coordinator's folder is a cache: a file in it that has rotted ends neither a round nor the
coordinator, and costs no site its delta. It is found, said, and fetched again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.blobs import BlobRef, digest_file
from outer import recover, shelf
from outer.recover import VersionDiffers
from outer.shelf import Shelf
from outer.workshop import Workshop
from tests.outer.test_announced_sizes import Counting
from tests.support.coordinating import Site, World, rounds, started

TWO = {"quorum": 2, "grace_s": 1e3}


def flipped(data: bytes) -> bytes:
    """One bit of the last value's lowest byte: it stays finite, and its norm what it was said to
    be."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def nan(data: bytes) -> bytes:
    return data[:-2] + b"\xc0\x7f"  # of bf16, little-endian


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


Harm = Callable[[bytes], bytes]
HARMS = [flipped, nan, torn]


def rot(path: Path, harm: Harm) -> None:
    path.write_bytes(harm(path.read_bytes()))


async def recomputed(world: World, folder: Path) -> None:
    """Whoever has only log and store comes to the committed version, or this raises."""
    version = world.view.run().version
    state = await recover.state_at(world.view, world.blobs, folder, version)
    assert state.version == version


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that a shelf has hashed."""
    names: list[str] = []

    def counted(path: Path) -> BlobRef:
        names.append(path.name)
        return digest_file(path)

    monkeypatch.setattr(shelf, "digest_file", counted)
    return names


async def test_a_file_is_hashed_where_it_comes_from_or_once_where_it_is_found(
    tmp_path: Path, hashed: list[str]
) -> None:
    store = Counting(tmp_path / "store")
    (tmp_path / "one").write_bytes(b"a delta")
    name, said = (await store.put(tmp_path / "one")).digest, []
    first = Shelf(store, tmp_path / "cache", said.append)
    for _ in range(3):
        await first.fetch(name)
    assert (hashed, store.asked) == ([], [name])
    second = Shelf(store, tmp_path / "cache", said.append)
    for _ in range(3):
        await second.fetch(name)
    assert (hashed, store.asked, said) == ([name], [name], [])
    rot(tmp_path / "cache" / name, torn)
    third = Shelf(store, tmp_path / "cache", said.append)
    assert (await third.fetch(name)).read_bytes() == b"a delta"
    assert store.asked == [name, name]
    (text,) = said
    assert name in text and text.endswith("it is fetched again")


async def test_two_who_find_the_same_rotten_file_throw_it_away_once(tmp_path: Path) -> None:
    store, said = Counting(tmp_path / "store"), list[str]()
    (tmp_path / "one").write_bytes(bytes(3 << 20))
    name = (await store.put(tmp_path / "one")).digest
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / name).write_bytes(b"rotten")
    both = Shelf(store, tmp_path / "cache", said.append)
    (path, same) = await asyncio.gather(both.fetch(name), both.fetch(name))
    assert path == same and path.read_bytes() == bytes(3 << 20)
    assert len(said) == 1


@pytest.mark.parametrize("harm", HARMS)
async def test_a_successor_that_finds_a_rotten_delta_merges_the_one_that_was_delivered(
    tmp_path: Path, harm: Harm
) -> None:
    world = await started(tmp_path, {"rounds": 3}, rounds=TWO)
    one = world.coordinator("one")
    async with world.coordinated(one):
        sites = [Site(world, "a"), Site(world, "b")]
        for site in sites:
            await site.join()
        sequence = await sites[0].round()
        await world.until(lambda: sequence in one._duties.verdicts, "a verdict")
    delta = world.view.delta(sequence)
    said: list[str] = []
    two = world.coordinator("two", say=said.append, clock=lambda: 1e6)
    (one.workshop.folder / delta.blob).rename(two.workshop.folder / delta.blob)
    rot(two.workshop.folder / delta.blob, harm)
    now = [0.0]
    two.clock = lambda: now[0]
    async with world.coordinated(two):
        await asyncio.sleep(0.2)
        now[0] = 100.0
        await sites[1].round()
        await world.until(lambda: world.view.run().version == 1, "a commit")
    assert world.count("delta.refused") == 0
    assert [text for text in said if delta.blob in text and "fetched again" in text]
    await recomputed(world, tmp_path / "elsewhere")


@pytest.mark.parametrize("harm", [nan, torn])
async def test_a_delta_that_rots_between_verdict_and_merge_ends_neither_round_nor_coordinator(
    tmp_path: Path, harm: Harm
) -> None:
    world, said = await started(tmp_path, {"rounds": 3}, rounds=TWO), list[str]()
    one = world.coordinator("one", say=said.append)
    async with world.coordinated(one):
        sites = [Site(world, "a"), Site(world, "b")]
        for site in sites:
            await site.join()
        await rounds(world, sites, 1)
        sequence = await sites[0].round()
        await world.until(lambda: sequence in one._duties.verdicts, "a verdict")
        rot(one.workshop.folder / world.view.delta(sequence).blob, harm)
        await sites[1].round()
        await world.until(lambda: world.view.run().version == 2, "a commit")
    assert world.count("delta.refused") == 0
    assert [text for text in said if "has other bytes than its name says" in text]
    await recomputed(world, tmp_path / "elsewhere")


@pytest.mark.parametrize("harm", HARMS)
async def test_p3_a_recovery_that_differs_for_a_rotten_file_is_taken_again_without_it(
    tmp_path: Path, harm: Harm
) -> None:
    world = await started(tmp_path, {"rounds": 9}, snapshots={"every_versions": 100})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 2)
    said: list[str] = []
    shop = Workshop(world.blobs, tmp_path / "shop", say=said.append)
    await shop.recover(world.view)
    digests = shop.digests
    (delta,) = world.view.merged_in(2)
    rot(shop.folder / delta.blob, harm)
    await shop.recover(world.view)
    assert shop.digests == digests and [delta.blob in text for text in said] == [True]
    rot(shop.folder / world.view.run().parameters_blob, torn)
    shop = Workshop(world.blobs, tmp_path / "shop", say=said.append)
    await shop.recover(world.view)
    assert shop.digests == digests and world.view.run().parameters_blob in said[-1]


async def test_p3_a_version_that_differs_with_sound_files_is_still_said(tmp_path: Path) -> None:
    world = await started(tmp_path, {"rounds": 9})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], 1)
    world.projection.db.execute("UPDATE versions SET momentum_digest = ?", ("0" * 64,))
    with pytest.raises(VersionDiffers, match="momentum"):
        await Workshop(world.blobs, tmp_path / "shop").recover(world.view)
