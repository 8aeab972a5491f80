"""The order in which deltas arrive, and deltas that are refused, leave no trace in a version."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from outer import codecs, recover
from tests.support.coordinating import SHAPES, Site, World, started, tensors

SITES = ("a", "b", "c")
CONFIG = {"quorum": 3, "grace_s": 60.0, "deadline_s": 400.0}


async def one_round(folder: Path, order: tuple[str, ...]) -> World:
    """A round of three unequal deltas, published in this order."""
    folder.mkdir()
    world = await started(
        folder,
        {"rounds": 1},
        rounds=CONFIG,
        outer={"update_codec": "4-bit"},
        inner={"steps": 6, "batch_sequences": 2},
    )
    async with world.coordinated():
        sites = {name: Site(world, name) for name in SITES}
        for site in sites.values():
            await site.join()
        blocks = {name: await site.train() for name, site in sites.items()}
        for name in order:
            await sites[name].publish(blocks[name][: 1 + SITES.index(name)])
        await world.until(lambda: world.view.run().version == 1, "a version")
    return world


async def test_three_unequal_deltas_give_the_same_bytes_in_all_six_orders(tmp_path: Path) -> None:
    found = set()
    for order in permutations(SITES):
        world = await one_round(tmp_path / "".join(order), order)
        row = world.view.version(1)
        deltas = world.view.merged_in(1)
        assert row is not None and [delta.site for delta in deltas] == list(SITES)
        assert sorted(delta.token[0] for delta in deltas) == [
            {delta.site: delta.token[0] for delta in deltas}[name] for name in order
        ]
        weights = tuple(delta.weight for delta in deltas)
        assert len({delta.blob for delta in deltas}) == 3 and len(set(weights)) > 1
        found.add((row.update_blob, row.parameters_digest, row.momentum_digest,
                   row.residual_digest, weights))  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize("harm", ["form", "outlier", "blob"])
async def test_p8_progress_of_a_refused_delta_is_nowhere_in_the_model(
    tmp_path: Path, harm: str
) -> None:
    """θ is what NumPy makes of the merged deltas alone, each with its tokens' share."""
    world = await started(tmp_path, {"rounds": 2}, rounds=CONFIG, snapshots={"retention": "all"},
                          outer={"delta_codec": "fp32", "update_codec": "fp32"})  # fmt: skip
    async with world.coordinated():
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        blocks = await b.train()
        bad = {
            "form": lambda: b.store({"foreign": tensors(7)["bias"]}, "bf16"),
            "outlier": lambda: b.store(tensors(7, 1e7), "bf16"),
            "blob": lambda: b.store(tensors(7), "bf16"),
        }
        blob = await bad[harm]()
        if harm == "blob":
            await world.blobs.release([blob])
        refused = await b.publish(blocks, blob, norm=3.0, max_abs=1.0)
        await world.until(lambda: world.view.delta(refused).state == "refused", "a refusal")
        await b.leave()
        for version in (1, 2):
            await a.round()
            await world.until(lambda v=version: world.view.run().version == v, "a version")
            await a.catch_up()
    theta = {name: tensors(0)[name].numpy().copy() for name in SHAPES}
    momentum = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    residual = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    lr, mu, carry = np.float32(0.7), np.float32(0.9), np.float32((1 - 0.9) / 0.7)
    for row in world.view.versions():
        merged = world.view.merged_in(row.round)
        assert refused not in [delta.token[0] for delta in merged]
        terms = []
        for delta in merged:
            path = tmp_path / f"merged-{delta.token[0]}"
            await world.blobs.get(delta.blob, path)
            terms.append((np.float32(delta.weight), codecs.decode(path)))
        for name in SHAPES:
            d = sum((w * one[name].numpy() for w, one in terms[1:]),
                    terms[0][0] * terms[0][1][name].numpy()) + residual[name]  # fmt: skip
            momentum[name] = mu * momentum[name] + d
            move, before = lr * (d + mu * momentum[name]), theta[name]
            theta[name] = before - move
            residual[name] = carry * (move - (before - theta[name]))
    state = await recover.state_at(world.view, world.blobs, tmp_path / "again", 2, from_start=True)
    for name in SHAPES:
        assert np.array_equal(state.parameters[name].numpy(), theta[name])
        assert np.array_equal(state.momentum[name].numpy(), momentum[name])
        assert np.array_equal(state.residual[name].numpy(), residual[name])
