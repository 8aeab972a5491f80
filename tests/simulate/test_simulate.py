"""Simulated runs: the same seed is the same history, every fault happens, and hundreds of
nightmares break no promise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ops.simulate import many, scenario
from ops.simulate.faults import KINDS, Fault
from ops.simulate.run import Outcome, plan_of, simulate

ROOT = Path(__file__).parent.parent.parent
NUM_SEEDS = 200
NIGHTMARE = scenario.load("nightmare")
EVERY = (  # what 200 nightmares are to have done to somebody, at least once
    "crash", "hang", "pause", "partition", "lost", "delayed", "duplicated", "reordered",
    "ambiguous, stored", "ambiguous, not stored", "append sent twice", "torn", "coordinator torn",
    "two coordinators", "twin", "log back", "wall clock", "walltime", "coordinator crash",
    "coordinator stale", "claims", "strange", "rotten", "replay",
)  # fmt: skip


def story(outcome: Outcome) -> str:
    return "\n".join(map(str, [*outcome.plan, *outcome.last_events, *outcome.broken]))


def one(kind: str, **changes: float) -> Outcome:
    """The nightmare's run with this single fault."""
    fields = {"at_s": 6.0, "who": "", "duration_s": 6.0, "number": 1, **changes}
    return simulate(NIGHTMARE, 3, [Fault(kind=kind, **fields)])


@pytest.mark.timeout(900)  # a minute on two cores that nobody else uses
def test_nightmares_break_nothing_and_finish() -> None:
    faults: Counter[str] = Counter()
    began = time.monotonic()
    for outcome in many.outcomes(NIGHTMARE, "nightmare", range(NUM_SEEDS), many.cores()):
        assert not outcome.broken, f"seed {outcome.seed}\n{story(outcome)}"
        assert outcome.finished
        faults.update(outcome.faults)
    print(f"{NUM_SEEDS} nightmares in {time.monotonic() - began:.0f} s: {dict(faults)}")
    assert not [kind for kind in EVERY if not faults[kind]]


def test_the_same_seed_is_the_same_history_whatever_the_hashes_of_this_process() -> None:
    code = (
        "from ops.simulate import scenario; from ops.simulate.run import simulate\n"
        "for seed in (2, 6):\n"
        "    one = simulate(scenario.load('nightmare'), seed)\n"
        "    print(one.log_digest, one.model_digest, one.events, one.faults)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert said[0] == said[1]
    digests = {line.split()[0] for line in said[0].splitlines()}
    assert len(digests) == 2  # and another seed is another history


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_fault_is_really_done_to_somebody_and_breaks_nothing(kind: str) -> None:
    outcome = one(kind)
    assert not outcome.broken, story(outcome)
    assert outcome.finished
    assert sum(outcome.faults.values()) >= 1, "nothing was injected"


def test_a_pause_of_the_leader_makes_two_coordinators() -> None:
    seen: Counter[str] = Counter()
    for number in range(4):
        seen.update(one("coordinator pause", number=number, duration_s=12.0).faults)
    assert seen["two coordinators"] >= 1


def test_a_crash_costs_blocks_and_a_good_departure_costs_none() -> None:
    crash = one("crash", number=0, duration_s=2.0)  # it names its predecessor, which is replaced
    assert [departure["code"] for departure in crash.departures] == ["replaced"]
    assert crash.blocks_reclaimed >= 1
    assert crash.reclaimed_started + crash.reclaimed_unstarted == crash.blocks_reclaimed
    calm = simulate(NIGHTMARE, 3, [])
    assert (calm.blocks_reclaimed, calm.departures, calm.faults) == (0, [], {})


def test_a_run_is_exactly_its_target() -> None:
    calm = simulate(NIGHTMARE, 5, [])
    tokens = NIGHTMARE.sequences * NIGHTMARE.sequence_tokens
    assert calm.tokens == NIGHTMARE.config.target.epochs * tokens


@pytest.mark.parametrize("name", ["lonely", "last-block"])
def test_the_small_scenarios_hold_and_finish(name: str) -> None:
    for seed in range(3):
        outcome = simulate(scenario.load(name), seed)
        assert not outcome.broken, story(outcome)
        assert outcome.finished


@pytest.mark.parametrize(("seed", "behind_s"), [(0, 2.0), (1, 14.0)])
def test_r20_a_joiner_whose_snapshot_takes_many_rounds_comes_in_without_beginning_anew(
    seed: int, behind_s: float
) -> None:
    """It takes 20 s to fetch a snapshot, and a newer one is stored every 1.3 s; `behind_s`: within
    which it has caught up then (with overlap, 0.6 s a version, as new ones come). The digest that
    it then says it holds is the committed one, or the event would be void."""
    lines: list[str] = []
    slow = scenario.load("slow-joiner")
    outcome = simulate(slow, seed, [], say=lines.append)
    assert not outcome.broken, story(outcome)
    assert outcome.finished and outcome.departures == []
    events = [(float(line.split()[0]), *line.split(None, 5)[2:]) for line in lines]
    admitted = [at_s for at_s, _, who, kind, *_ in events if kind == "site.admitted"][2]
    applied = [one for one in events if one[2:4] == ("site.b", "version.applied")]
    assert admitted + 20.0 < applied[0][0] < admitted + 20.0 + behind_s
    assert not [why for *_, why in applied if why.startswith("void")]
    meanwhile = [one for one in events if admitted < one[0] < applied[0][0]]
    assert sum(one[3] == "snapshot.saved" for one in meanwhile) > 12
    after = next(one for one in events if one[3] == "blobs.released" and one[0] > applied[0][0])
    assert after[0] < applied[0][0] + 0.1, "what was kept for it goes at once"


@pytest.mark.parametrize("seed", range(3))
def test_slow_joiners_under_faults_hold_and_finish(seed: int) -> None:
    outcome = simulate(scenario.load("slow-joiner"), seed)
    assert not outcome.broken, story(outcome)
    assert outcome.finished


def test_zero_sites_write_nothing() -> None:
    """Between the second visit's end and the last site's arrival the log does not grow."""
    lines: list[str] = []
    outcome = simulate(scenario.load("lonely"), 0, [], say=lines.append)
    assert not outcome.broken
    times = [float(line.split()[0]) for line in lines]
    assert not [at_s for at_s in times if 100.0 < at_s < 290.0]
    assert any(at_s > 290.0 for at_s in times)


def test_a_plan_is_a_function_of_the_seed_and_stays_within_its_times() -> None:
    assert plan_of(NIGHTMARE, 7) == plan_of(NIGHTMARE, 7)
    assert plan_of(NIGHTMARE, 7) != plan_of(NIGHTMARE, 8)
    for seed in range(30):
        at_s = [fault.at_s for fault in plan_of(NIGHTMARE, seed)]
        assert at_s == sorted(at_s)
        assert all(NIGHTMARE.chance.from_s <= one <= NIGHTMARE.chance.to_s for one in at_s)


def test_all_scenarios_can_be_loaded_and_an_unknown_one_is_one_clear_line() -> None:
    assert scenario.names() == [
        "churn", "last-block", "lonely", "nightmare", "paper-24h", "slow-joiner",
    ]  # fmt: skip
    for name in scenario.names():
        assert scenario.load(name).num_numbers <= scenario.MAX_NUMBERS
    with pytest.raises(scenario.ScenarioInvalid, match="churn, last-block"):
        scenario.load("dream")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("[chance]\nnum = [5, 1]\nweights = { crash = 1 }", "smaller to the larger"),
        ("[chance]\nnum = [-5, -1]\nweights = { crash = 1 }", "greater than or equal to 0"),
        ("[chance]\nnum = [1, 1]\nfrom_s = 9.0\nweights = { crash = 1 }", "smaller to the larger"),
        ("[chance]\nnum = [1, 1]", "no kind has a weight"),
        ("[chance]\nnum = [1, 1]\nweights = { crash = 0 }", "no kind has a weight"),
        ("[chance]\nnum = [1, 1]\nweights = { crash = inf }", "less than or equal"),
        ('[[sites]]\nname = "a"\nsteps_per_s = 1', "two sites are named 'a'"),
        ('[[sites]]\nname = "b"\nsteps_per_s = 1\njoins_s = []', "at least 1 item"),
        ('[[told]]\nat_s = 1\nkind = "crash"\nwho = "c"', "'c', which is not there"),
        ('[[told]]\nat_s = 1\nkind = "coordinator crash"\nwho = "a"', "'a', which is not there"),
        ('[run.outer]\nlr = "fast"', ""),
    ],
)
def test_a_scenario_that_makes_no_sense_is_one_clear_line(
    tmp_path: Path, more: str, why: str
) -> None:
    path = tmp_path / "mine.toml"
    site = '[[sites]]\nname = "a"\nsteps_per_s = 1\n'
    path.write_text(f'title = "mine"\nsequences = 8\n[run]\ntarget = {{ epochs = 1 }}\n{site}')
    scenario.load(str(path))
    path.write_text(path.read_text() + more)
    if why:
        with pytest.raises(scenario.ScenarioInvalid, match=why):
            scenario.load(str(path))
    else:
        scenario.load(str(path))  # the simulator takes an outer step of its own
    path.write_text(path.read_text().replace("[run]", '[run]\nouter = "fast"').split("[run.")[0])
    with pytest.raises(scenario.ScenarioInvalid):
        scenario.load(str(path))
