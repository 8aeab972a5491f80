"""What a run waits for is said in words, with the time left that the policies will act by."""

from __future__ import annotations

import pytest

from eventlog.events import (
    DrainRequested,
    Heartbeat,
    RunFinished,
    RunPaused,
    RunStopped,
    SiteDeparting,
)
from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View
from outer import rounds
from outer.rounds import Facts, Verdict
from outer.standby import owed
from outer.waiting import names, span, waiting
from tests.support.scenario import Scenario, name

# Scenario: a tick every 2 s, lost after 8 ticks, quorum 2, grace 3 ticks, deadline 20 ticks


def said(scenario: Scenario, silence_s: float | None = None) -> list[str]:
    return [str(wait) for wait in waiting(scenario.view, silence_s)]


def two_at_work() -> Scenario:
    """alpha and beta in round 1 with two blocks each."""
    run = Scenario(num_sequences=40)
    run.arrive("alpha", "beta")
    assert run.open(alpha=2, beta=2) == ""
    assert run.grant("alpha", 0, 1) == "" and run.grant("beta", 2, 3) == ""
    return run


def test_an_empty_log_waits_to_be_created() -> None:
    with Projection(":memory:", [LeaseTable()], "tests") as projection:
        (wait,) = waiting(View(projection.db))
    assert str(wait) == "the run does not exist yet, until it is created"


def test_without_a_coordinator_ever_that_is_said_first() -> None:
    assert said(Scenario(elect=False)) == [
        "the run has no coordinator yet, until one is started",
        "the run rests: nobody is live, until a site joins",
    ]


def test_with_nobody_live_the_run_rests_until_a_site_joins() -> None:
    run = Scenario()
    assert said(run, silence_s=3600.0) == ["the run rests: nobody is live, until a site joins"]
    assert not owed(run.view)
    run = two_at_work()
    assert run.depart("alpha") == "" and run.depart("beta") == ""
    assert said(run) == ["the run rests in round 1: nobody is live, until a site joins"]


def test_a_round_waits_for_who_owes_blocks_until_all_are_in_or_the_deadline() -> None:
    run = two_at_work()
    run.train("beta", 2)
    run.tick()
    assert said(run) == [
        "round 1 waits for alpha (0 of 2 blocks), beta (1 of 2 blocks), "
        "until all are in, or for 38 s more (deadline)"
    ]
    run.train("alpha", 0, 1)
    run.deliver("alpha", 0, 1)
    assert said(run) == [
        "round 1 waits for beta (1 of 2 blocks), until all are in, or for 38 s more (deadline)",
        "alpha delivered and waits for version 1",
    ]


def test_once_the_quorum_is_reached_the_grace_runs_and_the_round_closes_when_it_is_said_to() -> (
    None
):
    run = Scenario(num_sequences=40)
    run.arrive("alpha", "beta", "gamma")
    assert run.open(alpha=1, beta=1, gamma=1) == ""
    run.grant("gamma", 5)
    first, second = run.work("alpha", 0), run.work("beta", 1)
    facts = Facts({first[0]: Verdict(), second[0]: Verdict()})
    for left in ("6 s", "4 s", "2 s"):
        assert said(run)[0] == (
            "round 1 waits for gamma (0 of 1 blocks), "
            f"until all are in; quorum of 2 reached, grace ends in {left}"
        )
        assert rounds.closing(run.view, facts) == []
        run.tick()
    assert len(rounds.closing(run.view, facts)) == 1


def test_behind_the_deadline_without_a_delta_the_round_waits_for_the_first() -> None:
    run = two_at_work()
    for _ in range(20):
        run.tick()
        run.apply("alpha", 0)
        run.apply("beta", 0)
    assert said(run) == [
        "round 1 waits for alpha (0 of 2 blocks), beta (0 of 2 blocks), "
        "until the first delta: the deadline is over"
    ]


def test_all_in_is_checked_then_merged_then_the_next_round_opens() -> None:
    run = two_at_work()
    for site, blocks in (("alpha", (0, 1)), ("beta", (2, 3))):
        run.train(site, *blocks)
        run.deliver(site, *blocks)
    assert said(run)[0] == (
        "round 1 has all 2 expected deltas: they are checked, until the cut is made"
    )
    assert run.decide(run.closing()) == ""
    assert said(run) == [
        "version 1 is being merged from the deltas of alpha, beta, until round 1 commits"
    ]
    assert run.decide(run.committing()) == ""
    assert said(run)[-1] == "round 2 is about to open, until the coordinator opens it"


def test_a_site_without_a_version_gets_no_blocks_and_the_round_waits_for_one_that_holds_it() -> (
    None
):
    run = Scenario()
    assert run.admit("alpha", run.join("alpha")) == ""
    assert said(run) == [
        "alpha holds no version yet and gets no blocks, until it holds version 0",
        "round 1 waits for a site that holds version 0, until one reports it",
    ]


def test_a_silent_site_departs_when_it_is_said_to() -> None:
    run = two_at_work()
    for tick in range(1, 9):
        run.tick()
        run.apply("beta", 0)
        silent = [line for line in said(run) if line.startswith("alpha")]
        if tick < 3:  # three heartbeats, one a second, are surely missed behind two whole ticks
            assert silent == []
        elif tick < 8:
            left, gone = 16 - 2 * tick, 2 * tick
            until = f"departs as lost in {left} s unless it speaks"
            assert silent == [f"alpha is silent for {gone} s, {until}"]
            assert rounds.policy.departures(run.view) == []
    assert silent == ["alpha is silent for 16 s, departs now as lost"]
    assert [event.site for event in rounds.policy.departures(run.view)] == ["alpha"]


def test_who_leaves_and_who_is_asked_to_is_named() -> None:
    run = two_at_work()
    assert run.operator(DrainRequested(site="beta", reason="maintenance")) == ""
    assert run.says("alpha", SiteDeparting(code="walltime", reason="its job ends")) == ""
    assert said(run)[:2] == [
        "alpha is leaving: its job ends, until its departure is recorded",
        "beta is drained: it delivers what is started, until it has left",
    ]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            RunPaused(reason="the data is suspect"),
            "the run is paused: the data is suspect; started blocks are still finished and merged, "
            "until it is resumed",
        ),
        (
            RunStopped(reason="enough"),
            "the run is stopping: enough; alpha, beta deliver what is started, "
            "until all sites have left",
        ),
    ],
)
def test_what_the_operator_asked_for_is_said_with_the_reason(request_, words: str) -> None:
    run = two_at_work()
    assert run.operator(request_) == ""
    assert said(run)[0] == words
    assert said(run)[-1] == "round 1 has no delta and stays open, until the run goes on or ends"


def test_at_the_door_a_site_waits_for_an_answer_or_for_its_predecessor() -> None:
    run = Scenario()
    run.join("alpha")
    assert said(run)[0] == "alpha waits at the door: no coordinator has answered, until one does"
    assert owed(run.view)
    run = two_at_work()
    run.tick(3)
    seq = run.sites["alpha"][0]
    run.join("alpha")
    assert (
        f"alpha waits at the door: its predecessor #{seq} is silent, until that one departs in "
        "10 s; refused as a twin if it speaks" in said(run)
    )
    run.join("beta", successor=True)
    run.apply("beta", 0)
    seq = run.sites["beta"][0]
    assert (
        f"beta waits at the door: its predecessor #{seq} still speaks, until that one departs"
        in said(run)
    )
    run.join("beta", predecessor=run.sites["beta"])
    assert (
        f"beta waits at the door: it holds the lock of its predecessor #{seq}, until that one "
        "is departed" in said(run)
    )


def test_a_silent_coordinator_is_told_by_the_clock_of_who_looks() -> None:
    run = two_at_work()
    assert said(run, silence_s=3.0) == said(run)
    assert said(run, silence_s=6.5)[0] == (
        "the run has no coordinator that speaks: no tick for 6.5 s, "
        "until a standby takes over in 9.5 s or later"
    )
    assert said(run, silence_s=200.0)[0] == (
        "the run has no coordinator that speaks: no tick for 3 min 20 s, "
        "until the broker answers, or a coordinator is started"
    )


def test_a_reached_target_waits_for_its_snapshot_and_a_finished_run_for_nothing() -> None:
    run = Scenario(target={"rounds": 1}, num_sequences=40)
    run.arrive("alpha")
    assert run.open(alpha=1) == ""
    run.work("alpha", 0)
    run.commit()
    assert said(run)[-1] == (
        "the run has reached its target: version 1 is being kept whole, "
        "until that is stored; then it finishes"
    )
    digests = {
        f"{what}_digest": name(f"{what} 1") for what in ("parameters", "momentum", "residual")
    }
    end = RunFinished(
        outcome="target", version=1, tokens=32, num_returned=0, reason="done", **digests
    )
    assert run.decide(end) == ""
    assert said(run, silence_s=100.0) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 s"),
        (0.04, "0 s"),
        (3.5, "3.5 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_many_sites_are_counted_and_few_are_named() -> None:
    assert names(["a", "b"]) == "a, b"
    assert names([f"s{n}" for n in range(9)]) == "s0, s1, s2, s3, s4, … 9 sites in all"


def test_a_trainer_that_shows_no_step_is_told_before_its_site_departs() -> None:
    run = Scenario({"epochs": 9})
    run.arrive("alpha", "beta")
    run.open(alpha=2, beta=1)
    run.grant("alpha", 0, 1)
    run.says("alpha", run.starting(0))
    beats = {"phase": "training", "step": 1, "tokens": 1, "tokens_per_s": 8.0}
    told: list[list[str]] = []
    for _ in range(17):  # a step is owed within the lease, 8 ticks; one lease more is the hub's
        run.says("alpha", Heartbeat.model_validate(beats))
        run.says("beta", Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0))
        run.tick()
        told.append([line for line in said(run) if line.startswith("alpha")])
    assert told[7] == []
    assert told[8] == [
        "alpha is without a step in a block it trains, for 18 s, "
        "departs as lost in 14 s unless it goes on"
    ]
    assert [event.site for event in rounds.policy.departures(run.view)] == ["alpha"]
