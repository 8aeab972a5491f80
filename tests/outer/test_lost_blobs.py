"""Blobs that are lost though they are needed: while a coordinator holds the state, that costs a
snapshot; where nobody does, it is said which blob is missing, and nothing is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from eventlog.errors import BlobDamaged, BlobMissing
from eventlog.events import Heartbeat, SnapshotSaved
from ops.exits import INVALID, code_of
from outer.recover import StateLost
from outer.versions import digest
from outer.waiting import waiting
from outer.workshop import Workshop
from tests.support.coordinating import ARITHMETIC, Site, World, entries, rounds, started, tensors
from tests.support.scenario import joining


def snapshots(world: World) -> list[SnapshotSaved]:
    return [one.event for one in entries(world) if isinstance(one.event, SnapshotSaved)]


async def versions(folder: Path, num: int) -> World:
    """A run at a version, without a snapshot, whose coordinator is gone."""
    world = await started(folder, {"rounds": 9}, snapshots={"every_versions": 100})
    async with world.coordinated():
        site = Site(world, "a")
        await site.join()
        await rounds(world, [site], num)
        await site.leave()
    return world


def spoil(world: World, blob: str) -> None:
    """Other bytes stand where the blob's are."""
    (file,) = world.folder.joinpath("blobs").glob(f"{blob}*")
    file.chmod(0o644)
    file.write_bytes(b"something else")


def removals(world: World, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Takes what is removed from the store from here on."""
    found: set[str] = set()
    release = world.blobs.release

    async def noted(digests: Iterable[str]) -> None:
        named = list(digests)
        found.update(named)
        await release(named)

    monkeypatch.setattr(world.blobs, "release", noted)
    return found


async def beat(site: Site, missing: str | None) -> None:
    fields = {"phase": "applying", "step": 0, "tokens": 0, "tokens_per_s": 0.0}
    await site.says(Heartbeat.model_validate({**fields, "missing": missing}))


@pytest.mark.parametrize("what", ["delta", "update"])
async def test_p3_what_recovery_needs_and_is_lost_is_made_up_for_by_a_snapshot_at_once(
    tmp_path: Path, what: str
) -> None:
    world = await started(tmp_path, {"rounds": 9}, snapshots={"every_versions": 100})
    async with world.coordinated():
        site, other = Site(world, "a"), Site(world, "b")
        await site.join()
        await other.join()
        await rounds(world, [site, other], 2)
        (delta, _), row = world.view.merged_in(1), world.view.version(1)
        assert row is not None and snapshots(world) == []
        await world.blobs.release([delta.blob if what == "delta" else row.update_blob])
        for _ in range(40):  # within K ticks, which a live site keeps coming
            await beat(site, None)
            if found := snapshots(world):
                break
            await asyncio.sleep(0.2)
        await world.fold()
    (saved,) = found
    named = "a delta of a in version 1" if what == "delta" else "the update of version 1"
    assert saved.version == 2 and named in saved.reason and "blob store" in saved.reason
    shop = Workshop(world.blobs, tmp_path / "another-machine")
    await shop.recover(world.view)
    newest = world.view.version(2)
    assert newest is not None and shop.digests is not None
    assert shop.digests.parameters == newest.parameters_digest
    assert shop.digests.residual == newest.residual_digest


async def test_a_damaged_update_that_a_site_reports_is_made_up_for_and_an_untrue_report_is_not(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path, {"rounds": 9}, snapshots={"every_versions": 100})
    async with world.coordinated():
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        await rounds(world, [a, b], 1)
        row = world.view.version(1)
        assert row is not None
        await beat(b, row.update_blob)  # it is there
        await asyncio.sleep(0.5)
        assert snapshots(world) == []
        await beat(b, None)
        spoil(world, row.update_blob)
        with pytest.raises(BlobDamaged):
            await world.blobs.get(row.update_blob, tmp_path / "x")
        await asyncio.sleep(0.1)
        await beat(b, row.update_blob)
        await world.fold()
        said = [str(one) for one in waiting(world.view)]
        assert any("b cannot have blob" in one and row.update_blob[:12] in one for one in said)
        await world.until(lambda: snapshots(world), "a snapshot", seconds=5)
    (saved,) = snapshots(world)
    assert saved.version == 1 and "is damaged, says b" in saved.reason


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("version", [0, 1])
async def test_the_only_state_that_a_joiner_can_begin_from_is_stored_again(
    tmp_path: Path, version: int, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await started(tmp_path, {"rounds": 9}, snapshots={"every_versions": 1})
    one = world.coordinator()
    async with world.coordinated(one):
        site = Site(world, "a")
        await site.join()
        await world.until(lambda: one.workshop.state, "a coordinator that has recovered")
        await rounds(world, [site], version)
        await world.until(lambda: len(snapshots(world)) == version)
        row = world.view.version(1)
        blob = row.snapshot_blob if row else world.view.run().parameters_blob
        assert blob is not None
        if damaged:
            spoil(world, blob)
        else:
            await world.blobs.release([blob])
        removed = removals(world, monkeypatch)
        path = tmp_path / "again"
        for _ in range(40):
            await beat(site, blob)
            await asyncio.sleep(0.2)
            try:
                await world.blobs.get(blob, path)
                break
            except (BlobDamaged, BlobMissing):
                continue
    assert path.exists() and len(snapshots(world)) == version
    assert removed == ({blob} if damaged else set())  # R20: only what nobody can use makes room


async def test_p3_a_state_that_nobody_holds_and_whose_delta_is_lost_is_said_and_not_made_up(
    tmp_path: Path,
) -> None:
    world = await versions(tmp_path, 2)
    (delta,) = world.view.merged_in(2)
    kept = tmp_path / "mirror"
    await world.blobs.get(delta.blob, kept)
    await world.blobs.release([delta.blob])
    before = await world.log.last_sequence()
    heir, now = world.coordinator("heir"), [0.0]
    heir.clock = lambda: now[0]
    site = Site(world, "b")
    await site.says(joining(arithmetic=ARITHMETIC))
    task = asyncio.create_task(heir.run())
    for _ in range(500):
        now[0] += 0.5
        if task.done():
            break
        await asyncio.sleep(0.01)
    with pytest.raises(StateLost) as lost:
        await task
    text = str(lost.value)
    for word in (f"delta {delta.token[0]} of a", "version 2", delta.blob, "mirror", "initial"):
        assert word in text
    assert code_of(lost.value) == INVALID and lost.value.blob == delta.blob
    assert await world.log.last_sequence() - before <= 8  # it stopped at once
    await world.blobs.put(kept)
    async with world.coordinated(world.coordinator("next", clock=lambda: 1000.0 + now[0])):
        for _ in range(500):
            now[0] += 0.5
            await world.fold()
            if world.view.run().holder == "next" and world.view.live():
                break
            await asyncio.sleep(0.01)
    assert world.view.run().holder == "next"


async def test_what_is_lost_is_named_where_recovery_begins(tmp_path: Path) -> None:
    world = await versions(tmp_path, 1)
    initial = world.view.run().parameters_blob
    await world.blobs.release([initial])
    shop = Workshop(world.blobs, tmp_path / "another-machine")
    with pytest.raises(StateLost, match=r"lost is the initial parameters .*this run cannot go on"):
        await shop.recover(world.view)
    duties = world.coordinator("heir")._duties
    duties.projection, duties._view = world.projection, world.view
    with pytest.raises(StateLost, match=r"lost is the initial parameters .*this run cannot go on"):
        await duties._recover()
    assert world.view.run().version == 1 and digest(tensors(0)) == world.view.run().initial_digest
