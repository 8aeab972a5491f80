"""What a configuration comes to: figures that a person can compute by hand."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.config import RunConfig
from eventlog.events import DataShape
from leases.planning import Assumed, planned
from tests.support.scenario import config

SHAPE = DataShape(
    manifest_digest="0" * 64, num_sequences=1000, sequence_tokens=128, block_sequences=32
)


def of(assumed: Assumed = Assumed(), **sections: Any) -> dict[str, Any]:  # noqa: B008
    given: dict[str, Any] = {
        "target": {"tokens": 1_000_000},
        "data": {"block_sequences": 32},
        "inner": {"steps": 16, "batch_sequences": 8},
        "model": {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2},
        **sections,
    }
    run: RunConfig = config(given.pop("target"), **given)
    size = {"block_sequences": run.data.block_sequences}
    return planned(run, SHAPE.model_copy(update=size), 1_000_000, 500, assumed)


def test_rounds_and_blocks_follow_from_the_configuration() -> None:
    plan = of()
    assert (plan["blocks_per_epoch"], plan["epoch_tokens"]) == (32, 128_000)
    assert (plan["blocks_per_round_and_site"], plan["inner_steps_per_round"]) == (4, 16)
    assert plan["tokens_per_round"] == 3 * 4 * 32 * 128
    # of a million tokens the last block is begun: 245 of them, one round of which is not whole
    assert plan["rounds"] == 21 and plan["tokens"] == 245 * 32 * 128
    assert plan["epochs"] == plan["tokens"] / 128_000 and plan["warnings"] == []


@pytest.mark.parametrize(
    ("target", "rounds", "tokens"),
    [({"rounds": 7}, 7, 7 * 49_152), ({"epochs": 2}, 6, 256_000), ({"tokens": 4096}, 1, 4096)],
)
def test_tokens_are_those_that_the_target_asks_for(
    target: dict[str, int], rounds: int, tokens: int
) -> None:
    plan = of(target=target)
    assert (plan["rounds"], plan["tokens"]) == (rounds, tokens)


def test_a_block_that_is_larger_than_the_data_is_told() -> None:
    (warning,) = of(data={"block_sequences": 1024})["warnings"]
    assert "1024, and the data have 1000 sequences" in warning


def test_bytes_are_those_of_fp32_adam_and_of_the_codecs() -> None:
    plan = of()
    device = plan["device_bytes"]
    assert [device[name] for name in ("parameters", "gradients", "optimizer")] == [4e6, 4e6, 8e6]
    assert device["activations_estimated"] == 34 * 8 * 128 * 64 * 2
    assert device["logits"] == 10 * 8 * 128 * 500
    assert plan["host_bytes"]["total"] == 16e6 and plan["snapshot_bytes"] == 12e6
    traffic = {name: one["bytes"] for name, one in plan["codecs"].items()}
    assert traffic["bf16"] == 2e6 and traffic["4-bit"] == 515_625


def test_time_is_told_only_where_a_rate_is_known() -> None:
    assert of()["time"] is None
    assert of(Assumed(device="some processor"))["time"] is None
    time = of(Assumed(tokens_per_s=1024.0, link_bytes_per_s=1e6))["time"]
    # three deltas reach the coordinator and one leaves a site; the update goes up and comes down
    assert (time["training_s"], time["exchange_s"]) == (16.0, pytest.approx(4 * 2 + 2 * 2))
    assert time["overhead_share"] == pytest.approx(12 / 28)
    assert time["run_s"] == pytest.approx(21 * 28)
    hidden = of(Assumed(tokens_per_s=1024.0, link_bytes_per_s=1e6), outer={"overlap": "delayed"})
    assert hidden["time"]["overhead_share"] == 0.0
    known = of(Assumed(device="NVIDIA A100-SXM4-80GB"))["time"]
    assert known["tokens_per_s_and_site"] == pytest.approx(0.4 * 312e12 / 6e6)


def test_a_deadline_that_cuts_every_round_is_told() -> None:
    slow = Assumed(tokens_per_s=100.0)
    cut = of(slow, rounds={"deadline_s": 100.0, "grace_s": 5.0})
    assert not cut["time"]["within_deadline"] and "every round would be cut" in cut["warnings"][0]
    assert of(slow, rounds={"deadline_s": 200.0, "grace_s": 5.0})["time"]["within_deadline"]
