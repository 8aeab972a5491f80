"""The study's world: against the exact model, conservation, common random numbers, the command."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from ops import exits
from ops.cli import run
from ops.placement import study
from ops.placement.models import DrawnCentre, exponential
from ops.placement.settings import MEAN_S, setting
from ops.placement.shapes import Limits, Shape, SiteProfile
from ops.placement.study import POLICIES
from ops.placement.world import World

QUIET = lambda what, done, total: None  # noqa: E731


def exact(waits: list[float], duration: float) -> float:
    """Three equal shares: the t at which Σ (t - Wᵢ)⁺ / 3 = D."""
    first, second, third = sorted(waits)
    for num, known in ((1, [first]), (2, [first, second]), (3, [first, second, third])):
        t = (3 * duration + sum(known)) / num
        if num == 3 or t <= sorted(waits)[num]:
            return t
    raise AssertionError


@pytest.mark.parametrize("duration", [0.56, 1.0, 2.8])
def test_the_elastic_reduction_is_that_of_the_exact_model(
    duration: float, capsys: pytest.CaptureFixture[str]
) -> None:
    told = simulated(
        capsys,
        "--model",
        "exponential",
        "--sites",
        "3",
        "--policy",
        "elastic",
        "--duration",
        str(duration),
        "--seed",
        "5",
        "--replicas",
        "1500",
    )[0]
    random = Random(11)
    waits = [[random.expovariate(1) for _ in range(3)] for _ in range(40_000)]
    elastic = fmean(exact(one, duration) for one in waits)
    together = fmean(max(one) for one in waits) + duration
    assert abs(told["reduction_of_mean"] - (1 - elastic / together)) < 0.025
    low, high = told["reduction_interval"]
    assert low < told["reduction_of_mean"] < high < low + 0.06


def test_each_run_of_it_is_solved_exactly() -> None:
    made = setting("exponential", 3)
    for number in range(50):
        seed = f"1/{number}"
        waits = [centre.truth(0.0, made.sites[0].shapes[-1]) for centre in made.queues(seed)]
        found = study.replica(made, "elastic", 1.0, seed).time_s
        assert isclose(found, exact(waits, MEAN_S), rel_tol=1e-9)
        found = study.replica(made, "wait-for-all", 1.0, seed).time_s
        assert isclose(found, max(waits) + MEAN_S, rel_tol=1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_work_is_conserved_and_no_site_works_with_more_than_its_full_shape(name: str) -> None:
    made = setting("exponential", 2, walltime=1.0)
    for number in range(3):
        tally = study.replica(made, name, 2.0, f"7/{number}")
        worked = tally.node_s - tally.idle_node_s
        assert tally.time_s > 2.0 * MEAN_S * 0.999
        assert isclose(worked, made.work(2.0), rel_tol=1e-6)  # a token a node-second
        assert 0 <= tally.dark_s < tally.time_s


def test_a_replica_has_the_same_queues_for_every_policy_and_the_same_result_again() -> None:
    made = setting("lognormal", 3, walltime=2.0)
    first, again = (study.replica(made, "calibrated", 1.0, "3/0") for _ in range(2))
    assert first == again
    chain, plain = (study.replica(made, name, 0.1, "3/1") for name in ("elastic-chain", "elastic"))
    assert chain.time_s == plain.time_s  # over before any job has ended


def test_who_burns_takes_as_long_and_pays_for_the_wait() -> None:
    made = setting("exponential", 3)
    free, burning = (
        study.replica(made, name, 1.0, "9/9") for name in ("wait-for-all", "wait-for-all-burning")
    )
    assert isclose(free.time_s, burning.time_s)
    assert free.idle_node_s == 0 < burning.idle_node_s
    assert isclose(burning.node_s - burning.idle_node_s, free.node_s)


def test_the_planner_keeps_to_its_limits_in_a_whole_run() -> None:
    limits = Limits(max_pending=2, max_submissions_a_day=6, budget_node_hours=100.0)
    shapes = (Shape(1, 7200), Shape(2, 7200), Shape(2, 14400))
    site = SiteProfile("a", "batch", shapes, 1.0, limits)
    made = setting("exponential", 1)
    policy = study.policy("history", made, "1/1")
    policy.estimators = made.past("1/1", "history") | {"a": made.past("1/1", "history")["site-1"]}
    waited: list[int] = []
    decide = policy.decide

    class Watched:
        together, look_s = policy.together, policy.look_s

        def decide(self, world: World) -> object:
            actions = list(decide(world))
            waited.append(sum(job.started_at_s is None for job in world.jobs.values()))
            times = world.submitted_at.get("a", [])
            assert sum(at > world.now_s - 86400 for at in times) <= 6
            return actions

        def started(self, world: World, job: object) -> None:
            policy.started(world, job)

    world = World([site], [DrawnCentre(exponential(3600.0), "x")], 1e9, 20 * 86400.0)
    tally = world.run(Watched())  # type: ignore[arg-type]
    assert max(waited) <= 2
    assert 50.0 < tally.node_s / 3600 <= 100.0


def test_planning_beats_the_greedy_chain_where_waits_are_heavy_tailed() -> None:
    made = setting("lognormal", 3, walltime=1.0)
    chain, history = study.compare(made, ["elastic-chain", "history"], 4.0, 2, 30, QUIET)
    gained, (low, _) = study.reduction(history.times_s, chain.times_s)
    assert gained > 0.03 and low > 0


def test_a_reduction_and_its_interval_are_those_of_paired_ratios() -> None:
    gained, (low, high) = study.reduction([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (gained, low, high) == (0.5, 0.5, 0.5)  # always exactly half: no doubt
    gained, (low, high) = study.reduction([1.0, 3.0], [2.0, 2.0])
    assert gained == 0.0 and isclose(high, 1.96 / 2) and low == -high  # errors of 1 and -1


def test_seeds_are_paired_and_a_picture_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    picture = tmp_path / "study.svg"
    told = simulated(
        capsys,
        "--policy",
        "elastic-chain",
        "--policy",
        "history",
        "--walltime",
        "1",
        "--duration",
        "2",
        "--seeds",
        "2",
        "--replicas",
        "4",
        "-o",
        str(picture),
    )
    assert [(row["seed"], row["policy"]) for row in told[:4]] == [
        (0, "elastic-chain"),
        (0, "history"),
        (1, "elastic-chain"),
        (1, "history"),
    ]
    assert told[-1]["replicas"] == 8
    won, num = told[-1]["paired_seeds"]["history"]
    assert num == 2 and won == sum(
        row["reduction_against_chain"] > 0 for row in told[:4] if row["policy"] == "history"
    )
    text = picture.read_text()
    assert "elastic-chain" in text and "hours to the target" in text


def test_a_table_for_people_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "simulate", "--replicas", "3", "--walltime", "2"]) == exits.GOOD
    out = capsys.readouterr().out
    assert "exponential waits of 4.0 h" in out and "seed 0" in out


@pytest.mark.parametrize("wrong", [("--walltime", "1", "--model", "endogenous"), ("--policy", "x")])
def test_a_wrong_option_is_a_usage_error(wrong: tuple[str, ...]) -> None:
    assert run(["place", "simulate", *wrong]) == exits.USAGE


def test_a_missing_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["place", "simulate", "--model", "endogenous", "--traces", str(tmp_path / "none")]
    assert run(line) == exits.INVALID
    assert "no such folder of traces" in capsys.readouterr().err


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, object]]:
    """What the command prints with --json, row by row."""
    capsys.readouterr()
    assert run(["place", "simulate", *options, "--json"]) == exits.GOOD
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
