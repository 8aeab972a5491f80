"""The outer rate follows the run's progress, the same to the bit for whoever asks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from eventlog.config import Outer
from leases.progress import target_reached
from outer import verify
from outer.arithmetic import self_test
from outer.schedule import rate_share, rule_at, rule_of
from tests.support.coordinating import Site, World, rounds


def outer(**fields: Any) -> Outer:
    return Outer.model_validate(fields)


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0.05, 0.5), (0.1, 1.0), (0.325, 0.775), (0.55, 0.55), (1.0, 0.1)],
)
def test_a_line_rises_over_the_warmup_and_falls_to_the_final_rate(
    progress: float, share: float
) -> None:
    # From (0.1, 1) to (1, 0.1) the line falls by exactly what progress gains.
    found = rate_share(outer(schedule="linear", warmup=0.1, final_lr=0.1), progress)
    assert found == pytest.approx(share, abs=1e-15)


def test_half_a_cosine_is_that_of_the_c_library_to_the_last_digits() -> None:
    config = outer(schedule="cosine", warmup=0.2, final_lr=0.25)
    for i in range(1001):
        progress = 0.2 + 0.8 * i / 1000
        expected = 0.25 + 0.75 * (1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2
        assert rate_share(config, progress) == pytest.approx(expected, abs=4e-16)


def test_a_constant_rate_is_constant_after_its_warmup() -> None:
    assert [rate_share(outer(), p) for p in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    assert [rate_share(outer(warmup=0.5), p) for p in (0.125, 0.5, 1.0)] == [0.25, 1.0, 1.0]
    assert rate_share(outer(warmup=1.0), 1.0) == 1.0


def test_the_rate_is_computed_in_float64_and_rounded_once() -> None:
    rule = rule_of(outer(schedule="linear", final_lr=0.3, lr=0.7), 1 / 3)
    assert rule.lr == np.float32(0.7 * (0.3 + 0.7 * (1 - 1 / 3)))
    assert rule.momentum == np.float32(0.9)


def test_averaging_is_a_rate_of_one_without_momentum() -> None:
    config = outer(optimizer="average")
    assert (config.lr, config.momentum) == (1.0, 0.0)
    assert Outer.model_validate(config.model_dump()) == config
    rule = rule_of(config, 0.4)
    assert (rule.lr, rule.momentum, rule.carry) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "average", "lr": 0.7},
        {"optimizer": "average", "momentum": 0.9},
        {"optimizer": "average", "warmup": 0.1},
        {"optimizer": "average", "schedule": "cosine", "final_lr": 0.1},
        {"schedule": "cosine"},
        {"final_lr": 0.1},
        {"schedule": "linear", "final_lr": 0.0},
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"by definition|below 1|greater than 0"):
        outer(**fields)


@pytest.mark.parametrize(
    ("target", "expected"),
    [({"rounds": 3}, [1 / 3, 2 / 3, 1.0]), ({"tokens": 352}, None)],
)
async def test_every_version_is_recomputed_under_a_schedule(
    tmp_path: Path, target: dict[str, int], expected: list[float] | None
) -> None:
    settings = {"schedule": "cosine", "warmup": 0.4, "final_lr": 0.2, "update_codec": "4-bit"}
    ours = dict(self_test().operations)
    world = World(tmp_path, target, outer=settings, snapshots={"retention": "all"})
    await world.found(arithmetic=ours)
    async with world.coordinated():
        site = Site(world, "a")
        await site.join(arithmetic=ours)
        while not target_reached(world.view.db):
            await rounds(world, [site], 1)
        await world.until(lambda: world.state() == "finished", "the end")
    rows = world.view.versions()
    done = expected or [row.merged_tokens / 352 for row in rows]
    config = world.view.config().outer
    shares = [rate_share(config, min(1.0, progress)) for progress in done]
    assert len(set(shares)) == len(rows) >= 2 and shares[-1] == pytest.approx(0.2)
    rates = [rule_at(world.view, row.version, row.merged_tokens).lr for row in rows]
    assert rates == [np.float32(0.7 * share) for share in shares]
    assert all(one.mismatches == 0 for one in world.view.latest())
    found = await verify.deep(world.view, world.blobs, tmp_path / "deep")
    assert found.ok and found.through_version == len(rows), found.what
