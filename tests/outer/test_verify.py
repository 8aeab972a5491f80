"""The deep audit recomputes every version that retention left, and finds the first that differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eventlog.dir_blobs import DirBlobs
from eventlog.events import BlobsReleased, Event, RunCreated
from leases.audit import Audit
from leases.retention import first_left
from ops.auditing import deep_run
from outer import codecs, verify
from outer.arithmetic import ArithmeticDiffers, self_test
from outer.verify import Deep, deep
from outer.versions import digest, save_parameters
from outer.workshop import Workshop
from tests.leases.stories import records
from tests.support.scenario import RUN, Scenario

NUM_VERSIONS = 4


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(s, generator=generator) for k, s in {"w": (9, 7), "b": (7,)}.items()}


class Real(Scenario):
    """A run with real tensors: the scenario decides, the coordinator's workshop computes."""

    def __init__(self, folder: Path, parameters_blob: str, arithmetic: dict[str, str]) -> None:
        self.store = DirBlobs(folder / "store")
        self.folder = folder
        self._founding = {
            "parameters_blob": parameters_blob,
            "parameters_digest": digest(tensors(0)),
            "arithmetic": arithmetic,
        }
        super().__init__({"rounds": NUM_VERSIONS})
        (folder / "shop").mkdir()
        self.shop = Workshop(self.store, folder / "shop")

    def operator(self, event: Event) -> str:
        if isinstance(event, RunCreated):
            event = event.model_copy(update=self._founding)
        return super().operator(event)

    def apply(self, site: str, version: int, held: str = "") -> str:
        return super().apply(site, version, held or digest(tensors(0)))

    async def put(self, seed: int) -> dict[str, object]:
        """The fields of a delta that lies in the store."""
        path = self.folder / "delta"
        codecs.encode(tensors(seed), "bf16", path)
        norms = codecs.measure(codecs.decode(path))
        blob = await self.store.put(path)
        fields = {"blob": blob.digest, "num_bytes": blob.num_bytes, "codec": "bf16"}
        return {**fields, "norm": norms.norm, "max_abs": norms.max_abs}

    async def round(self, number: int) -> None:
        """One block of each of two sites, merged by the coordinator's own code."""
        assert self.open(alpha=1, beta=1) == ""
        for offset, site in enumerate(("alpha", "beta")):
            block, epoch = (2 * number + offset) % 6, (2 * number + offset) // 6
            assert self.grant(site, block, epoch=epoch) == ""
            self.train(site, block, epoch=epoch)
            fields = await self.put(10 * number + offset + 1)
            self.deliver(site, block, epoch=epoch, **fields)
        assert self.decide(self.closing()) == ""
        position, round_ = self.projection.position, self.view.round()
        assert round_ is not None
        deltas = self.view.deltas("cut")
        commit = await self.shop.merge(
            self.view, round_, deltas, position.sequence, position.log_digest
        )
        assert self.decide(commit) == ""
        row = self.view.version(number + 1)
        assert row is not None
        if (number + 1) % 2 == 0:
            saved = await self.shop.snapshot(row)
            assert saved is not None and self.decide(saved) == ""

    def delta_blobs(self, *versions: int) -> tuple[str, ...]:
        return tuple(
            delta.blob
            for version in versions
            for delta in self.view.merged_in(self.view.version(version).round)
        )


async def a_run(folder: Path, arithmetic: dict[str, str] | None = None) -> Real:
    """Two sites, four versions, snapshots of versions 2 and 4."""
    save_parameters(tensors(0), folder / "initial")
    blob = await DirBlobs(folder / "store").put(folder / "initial")
    real = Real(folder, blob.digest, arithmetic or self_test().operations)
    await real.shop.recover(real.view)
    real.arrive("alpha", "beta")
    for number in range(NUM_VERSIONS):
        await real.round(number)
    return real


async def gone_deep(real: Real, seen: list[int] | None = None) -> Deep:
    scratch = real.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    note = seen.append if seen is not None else lambda _: None
    return await deep(real.view, real.store, scratch, note)


async def test_every_version_is_recomputed_from_the_initial_parameters(tmp_path: Path) -> None:
    real, seen = await a_run(tmp_path), []
    found = await gone_deep(real, seen)
    assert (found.ok, found.from_version, found.through_version) == (True, 0, 4)
    assert seen == [1, 2, 3, 4]
    assert sorted(found.as_json()) == ["from_version", "ok", "through_version", "what"]


async def test_fetched_deltas_do_not_pile_up(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    await gone_deep(real)
    left = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert left == {real.view.run().parameters_blob}


async def test_what_retention_released_bounds_the_depth_and_is_said(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    blobs = real.delta_blobs(1, 2)
    assert real.decide(BlobsReleased(blobs=blobs, reason="two snapshots are kept")) == ""
    await real.store.release(blobs)
    found = await gone_deep(real)
    assert (found.ok, found.from_version, found.through_version) == (True, 2, 4)
    assert "from the snapshot of version 2" in found.what


async def test_whoever_asks_for_a_released_version_hears_which_are_left(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    assert [first_left(real.view, version) for version in range(5)] == [None] * 5
    updates = [row.update_blob for row in real.view.versions() if row.version in (1, 2)]
    blobs = (*real.delta_blobs(1, 2), *updates)
    assert real.decide(BlobsReleased(blobs=blobs, reason="two snapshots are kept")) == ""
    assert [first_left(real.view, version) for version in range(5)] == [None, 2, None, None, None]


async def test_a_run_that_goes_on_may_release_what_is_being_audited(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    audit = Audit(RUN)
    audit.feed(records(real))
    assert audit.position == real.projection.position.sequence
    blobs = real.delta_blobs(1, 2)
    assert real.decide(BlobsReleased(blobs=blobs, reason="two snapshots are kept")) == ""
    await real.store.release(blobs)
    found = await deep_run(audit, real.log, real.store, lambda done, total: None)
    assert (found.ok, found.from_version, found.through_version) == (True, 2, 4)
    await real.store.release(real.delta_blobs(3))
    found = await deep_run(audit, real.log, real.store, lambda done, total: None)
    assert (found.ok, found.version) == (False, 3)


async def test_a_blob_that_is_missing_though_nobody_released_it_is_found(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    await real.store.release(real.delta_blobs(3)[:1])
    found = await gone_deep(real)
    assert (found.ok, found.from_version, found.through_version) == (False, 0, 2)
    assert found.version == 3 and real.delta_blobs(3)[0] in found.what


@pytest.mark.parametrize("part", ["parameters", "momentum", "residual", "update"])
async def test_a_commit_of_other_tensors_is_found_at_its_version(tmp_path: Path, part: str) -> None:
    real = await a_run(tmp_path)
    column = "update_blob" if part == "update" else f"{part}_digest"
    real.projection.db.execute(f"UPDATE versions SET {column} = ? WHERE version = 3", ("0" * 64,))
    found = await gone_deep(real)
    assert (found.ok, found.through_version, found.version) == (False, 2, 3)
    assert part in found.what


async def test_weights_that_were_not_used_are_found(tmp_path: Path) -> None:
    real = await a_run(tmp_path)
    real.projection.db.execute("UPDATE deltas SET weight = 0.75 WHERE round = 1")
    found = await gone_deep(real)
    assert (found.ok, found.through_version, found.version) == (False, 0, 1)


async def test_a_machine_that_computes_otherwise_does_not_judge(tmp_path: Path) -> None:
    theirs = {**self_test().operations, "merge": "0" * 64}
    real = await a_run(tmp_path, theirs)
    with pytest.raises(ArithmeticDiffers, match="'merge'"):
        await gone_deep(real)


async def refused(real: Real, code: str, **changes: float) -> Deep:
    """A fifth round, in which alpha's delta, right in all but `changes`, is refused by a code."""
    assert real.open(alpha=1) == ""
    assert real.grant("alpha", 5, epoch=1) == ""
    real.train("alpha", 5, epoch=1)
    fields = await real.put(77) | changes
    delta = real.deliver("alpha", 5, epoch=1, **fields)
    assert real.refuse(delta, "alpha", code) == ""
    audit = Audit(RUN)
    audit.feed(records(real))
    scratch = real.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    found = await deep(audit.view, real.store, scratch, refusals=audit.refusals())
    audit.close()
    return found


@pytest.mark.parametrize("code", ["nonfinite", "form", "outlier", "blob"])
async def test_p8_a_refusal_that_the_blob_gives_no_cause_for_is_found(
    tmp_path: Path, code: str
) -> None:
    found = await refused(await a_run(tmp_path), code)
    assert (found.ok, found.through_version) == (False, 4)
    assert f"is refused as '{code}', should have been not at all" in found.what


async def test_p8_a_refusal_for_a_claim_that_does_not_hold_is_right(tmp_path: Path) -> None:
    found = await refused(await a_run(tmp_path), "form", norm=0.5)
    assert found.ok, found.what
    other = tmp_path / "other"
    other.mkdir()
    found = await refused(await a_run(other), "nonfinite", norm=0.5)
    assert "should have been as 'form': its norm is said to be 0.5" in found.what


async def test_p8_a_merged_delta_that_its_blob_gives_cause_to_refuse_is_found(
    tmp_path: Path,
) -> None:
    real = await a_run(tmp_path)
    real.projection.db.execute("UPDATE deltas SET norm = 1e-3 WHERE round = 2 AND site = 'beta'")
    found = await gone_deep(real)
    assert (found.ok, found.from_version, found.through_version) == (False, 0, 4)
    assert "of beta is merged in version 2, should have been refused as 'form'" in found.what


async def test_without_versions_the_initial_parameters_are_all_there_is(tmp_path: Path) -> None:
    save_parameters(tensors(0), tmp_path / "initial")
    blob = await DirBlobs(tmp_path / "store").put(tmp_path / "initial")
    real = Real(tmp_path, blob.digest, self_test().operations)
    found = await gone_deep(real)
    assert (found.ok, found.from_version, found.through_version) == (True, 0, 0)
    assert verify.first_recomputable(real.view) == 0
