"""A configuration is checked when it is built, and what it gives is arithmetic."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eventlog.config import RunConfig, Timing

GOOD = """
name = "demo"
lease_s = 4.0
[target]
rounds = 8
[data]
path = "corpus"
block_sequences = 8
[model]
model_type = "qwen3"
[inner]
steps = 10
batch_sequences = 4
"""


def config(**tables: Any) -> RunConfig:
    """The good configuration with tables or keys replaced or extended."""
    data = tomllib.loads(GOOD)
    for key, value in tables.items():
        if isinstance(value, dict) and key not in ("target", "model"):
            data[key] = {**data.get(key, {}), **value}
        else:
            data[key] = value
    return RunConfig.model_validate(data)


def test_a_good_configuration_is_taken_with_its_defaults() -> None:
    built = config()
    assert (built.seed, built.arithmetic, built.outer.lr, built.outer.momentum) == (
        0,
        "strict",
        0.7,
        0.9,
    )
    assert (built.steps_per_block, built.blocks_per_round) == (2, 5)
    assert RunConfig.model_validate(built.model_dump()) == built


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"nmae": "x"}, "nmae"),
        ({"inner": {"stpes": 3}}, "stpes"),
        ({"inner": {"steps": -5}}, "steps"),
        ({"inner": {"steps": 0}}, "steps"),
        ({"inner": {"batch_sequences": 3}}, "batch_sequences = 3 does not divide .* = 8"),
        ({"inner": {"steps": 20_002}}, "20002 is 10001 blocks a round, at most are 10000"),
        ({"target": {"rounds": 8, "epochs": 1}}, "exactly one"),
        ({"target": {}}, "exactly one"),
        ({"target": {"tokens": 0}}, "tokens"),
        ({"lease_s": 3.9}, "lease_s = 3.9 is shorter than four heartbeats"),
        ({"lease_s": math.inf}, "lease_s"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": 1e10}, "lease_s"),
        ({"rounds": {"deadline_s": 1e308}}, "deadline_s"),
        ({"rounds": {"grace_s": math.inf}}, "grace_s"),
        ({"rounds": {"grace_s": 31, "deadline_s": 30}}, "grace_s = 31 is longer than deadline_s"),
        ({"rounds": {"deadline_s": 30}}, r"grace_s = 60 \(its default\) is longer than"),
        (
            {"outer": {"warmup": 1, "schedule": "cosine", "final_lr": 0.1}},
            'warmup = 1 with schedule = "cosine"',
        ),
        ({"inner": {"weight_decay": math.inf}}, "weight_decay"),
        ({"name": "Not A Name"}, "name"),
        ({"outer": {"momentum": 1.0}}, "momentum"),
        ({"outer": {"lr": math.nan}}, "lr"),
        ({"outer": {"delta_codec": "int2"}}, "delta_codec"),
        ({"outer": {"overlap": "delayed", "max_staleness": 0}}, "give max_staleness = 1"),
        ({"model": {"hidden_size": 8}}, "model_type is missing"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**tables)


@pytest.mark.parametrize(
    "tables",
    [
        {"rounds": {"grace_s": 30, "deadline_s": 30}},  # wait for all until the deadline
        {"rounds": {"grace_s": 0}},
        {"rounds": {"quorum": 1000}},  # of the live sites, however few
        {"outer": {"warmup": 1.0}},  # without a schedule: it rises, and that is all
        {"outer": {"warmup": 0.99, "schedule": "linear", "final_lr": 0.1}},
    ],
)
def test_what_can_be_meant_is_taken(tables: dict[str, Any]) -> None:
    (table, values), *_ = tables.items()
    built = config(**tables).model_dump()[table]
    assert {key: built[key] for key in values} == values


@pytest.mark.parametrize(
    "tables",
    [
        {"rounds": {"grace_s": 31, "deadline_s": 30}},
        {"outer": {"warmup": 1, "schedule": "linear", "final_lr": 0.1}},
    ],
)
def test_a_log_keeps_a_configuration_that_a_new_run_is_refused_for(tables: dict[str, Any]) -> None:
    content = config().model_dump(mode="json", exclude_none=True)
    (table, values), *_ = tables.items()
    content[table] |= values
    with pytest.raises(ValidationError, match=table):
        RunConfig.model_validate(content)
    kept = RunConfig.recorded(content).model_dump()[table]
    assert {key: kept[key] for key in values} == values
    with pytest.raises(ValidationError, match="lease_s"):
        RunConfig.recorded(content | {"lease_s": 1})


def test_a_round_is_at_least_one_block() -> None:
    assert config(inner={"steps": 1, "batch_sequences": 1}).blocks_per_round == 1


@given(st.floats(4, 1e5), st.integers(0, 10_000))
def test_a_site_is_lost_only_after_four_heartbeats(lease_s: float, num_live: int) -> None:
    timing = Timing.of(lease_s)
    heartbeat_s = max(1.0, num_live / 50)
    assert timing.heartbeat_s(num_live) == heartbeat_s
    assert timing.lost_ticks(num_live) >= 8
    assert timing.lost_ticks(num_live) * timing.tick_s >= 4 * heartbeat_s * (1 - 1e-12)
    assert timing.tick_s * 8 == pytest.approx(lease_s)


@given(st.floats(4, 1e4), st.just(0.0) | st.floats(1e-6, 1e4))
def test_ticks_cover_a_duration_and_not_one_more(lease_s: float, seconds: float) -> None:
    timing = Timing.of(lease_s)
    ticks = timing.ticks(seconds)
    assert ticks * timing.tick_s >= seconds * (1 - 1e-12)
    assert (ticks - 1) * timing.tick_s < seconds or ticks == 0
