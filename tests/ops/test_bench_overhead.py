"""`atoll bench overhead`: shares of wall time in closed form, and a small run of all of it."""

from __future__ import annotations

import json

import pytest

from ops import exits
from ops.bench import overhead
from ops.bench.overhead import Costs
from ops.bench.shapes import MODELS
from ops.cli import run
from tests.ops.test_bench_rounds import TINY

STEPS = (100, 500, 1_000, 2_000)


def of_wall(cost_s: float, steps: int, step_s: float) -> float:
    return cost_s / (steps * step_s + cost_s)


@pytest.mark.parametrize(("steps", "published"), [(100, 0.32), (2_000, 0.031)])
def test_the_published_round_costs_the_published_share_at_the_steps_it_implies(
    steps: int, published: float
) -> None:
    assert overhead.share(110.0, steps, None) == pytest.approx(published, rel=0.005)


def test_the_table_has_blocked_time_with_overlap_and_the_whole_exchange_without() -> None:
    costs = Costs([1.0, 2.0, 9.0], [20.0], [0.25], exchange=50.0)
    said = {one.what: one for one in overhead.measures(costs, 2.0)}
    assert said["H=100"].value == 2 / 202
    assert (said["H=100"].met, said["H=100"].against_value) == (True, 0.32)
    assert said["H=500"].value == 2 / 1002
    assert said["H=500"].against_value is None
    assert said["H=2000"].value == 2 / 4002
    assert said["H=100 without overlap"].value == 50 / 250
    assert said["H=2000 without overlap"].value == 50 / 4050
    assert said["throughput lost"].value == 0.25
    assert said["throughput lost over H=100"].value == 5 / 205  # a quarter of 20 s, beside 200 s
    assert overhead.measures(Costs([3.0], [1.0], [0.0], 1.0), 2.0)[0].met is False


def test_costs_are_what_a_trainer_stood_still_for_and_what_ran_beside_it() -> None:
    exchange = {"cut": 1.0, "fold": 2.0, "encode": 4.0, "apply": 8.0}
    one = {**exchange, "step alone": 3.0, "step beside": 4.0}
    assert Costs.of([one], 30.0) == Costs([3.0], [12.0], [0.25], 30.0)


def test_a_small_run_measures_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "qwen3-50m", TINY)
    monkeypatch.setattr(
        overhead, "TRAINING", {**TINY, "vocab_size": 64, "sequences": 1, "tokens": 8}
    )
    command = ["bench", "overhead", "--quick", "--json", "--step-seconds", "0.5"]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    said = {one["what"]: one for one in found["measures"]}
    for ending, cost in (("", "blocked"), (" without overlap", "exchange")):
        for steps in STEPS:  # one cost, over so many steps
            expected = of_wall(said[cost]["value"], steps, 0.5)
            assert said[f"H={steps}{ending}"]["value"] == pytest.approx(expected)
    assert said["H=100"]["target"] == "≤ 0.01 of wall time"
    assert said["H=2000"]["against_value"] == 0.031
    assert 0 < said["blocked"]["value"] < said["exchange"]["value"]
    assert said["throughput lost"]["value"] < 1
    assert any("Snellius, LUMI and Frontier" in note for note in found["notes"])


def test_the_step_is_an_option_of_this_bench_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "churn", "--step-seconds", "1"]) == exits.USAGE
    assert "--step-seconds is an option of `atoll bench overhead` alone" in capsys.readouterr().err
