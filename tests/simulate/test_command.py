"""`atoll simulate --json` prints what docs/reference.md says, for one seed and for several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops import exits
from ops.cli import run
from ops.simulate import many, scenario
from ops.simulate import run as simulator

ONE = {
    "scenario", "seed", "violations", "broken", "reclaimed_share", "blocks_granted",
    "blocks_reclaimed", "blocks_stolen", "reclaimed_unstarted", "reclaimed_started", "departures",
    "faults", "events", "rounds", "tokens", "finished", "virtual_s", "log_digest", "model_digest",
    "seconds",
}  # fmt: skip


def test_one_seed_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "nightmare", "--seed", "3", "--json"]) == exits.GOOD
    found = json.loads(capsys.readouterr().out)
    assert set(found) == ONE
    assert (found["scenario"], found["seed"], found["violations"]) == ("nightmare", 3, 0)
    assert found["reclaimed_share"] == found["blocks_reclaimed"] / found["blocks_granted"]
    taken = sum(one["started"] + one["unstarted"] for one in found["departures"])
    assert taken <= found["blocks_reclaimed"]


def test_several_seeds_are_the_sum_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    single = []
    for seed in ("4", "5"):
        assert run(["simulate", "nightmare", "--seed", seed, "--json"]) == exits.GOOD
        single.append(json.loads(capsys.readouterr().out))
    assert run(["simulate", "nightmare", "--seed", "4", "--seeds", "2", "--json"]) == exits.GOOD
    both = json.loads(capsys.readouterr().out)
    assert (both["seeds"], both["num_seeds"], both["num_failed"]) == ([4, 5], 2, 0)
    for name in ("events", "rounds", "tokens", "blocks_granted", "blocks_reclaimed"):
        assert both[name] == sum(one[name] for one in single)
    kinds = set(single[0]["faults"]) | set(single[1]["faults"])
    assert both["faults"] == {
        kind: sum(one["faults"].get(kind, 0) for one in single) for kind in kinds
    }


def test_an_unknown_scenario_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "dream"]) == exits.USAGE
    assert "give one of churn" in capsys.readouterr().err


def test_workers_that_are_ended_within_a_seed_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "MEMORY", tmp_path)
    outcomes = many.outcomes(scenario.load("nightmare"), "nightmare", range(20), 2)
    assert not next(iter(outcomes)).broken
    assert list(tmp_path.glob("*/atoll-simulate-*")), "they work within a folder of ours"
    outcomes.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
