"""`atoll bench inner`: a whole site and a bare loop take turns, and the measure is its word."""

from __future__ import annotations

import json

import pytest

from ops.bench.inner import config_of
from ops.cli import run


def test_what_is_measured_is_the_demos_model_with_overlap() -> None:
    config = config_of(quick=False)
    assert (config.inner.steps, config.outer.overlap) == (100, "delayed")
    assert config.model == config_of(quick=True).model


@pytest.mark.soak
def test_a_short_turn_of_both_measures_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "inner", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (tokens,) = found["measures"]
    assert (tokens["what"], tokens["unit"], tokens["target"]) == ("tokens", "tokens/s", "≥ 0.97×")
    assert tokens["value"] > 0 and tokens["against_value"] > 0 and tokens["ratio"] > 0.3
