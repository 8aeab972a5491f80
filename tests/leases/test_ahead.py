"""Blocks ahead: what a site trains while its exchange runs, where a run's overlap is delayed."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.events import RunPaused
from leases import policy
from tests.leases.stories import audited
from tests.support.scenario import Scenario

OUTER = {"overlap": "delayed"}
H = 3  # blocks a round


def story(target: dict[str, int] | None = None, **outer: Any) -> Scenario:
    """alpha has a quota of two, beta of one, in round 1."""
    inner = {"steps": H * 2, "batch_sequences": 2}
    run = Scenario(target or {"epochs": 9}, 40, outer={**OUTER, **outer}, inner=inner)
    assert run.config.blocks_per_round == H
    run.arrive("alpha", "beta")
    assert run.open(alpha=2, beta=1) == ""
    assert run.grant("alpha", 0, 1) == "" and run.grant("beta", 2) == ""
    return run


def granted(run: Scenario) -> dict[str, int]:
    """How many blocks the policy grants now, by site. It is done, and nothing more is asked for."""
    events = policy.grants(run.view)
    found = {event.site: len(event.blocks) for event in events}
    for event in events:
        assert run.decide(event) == ""
        assert "ahead" in event.reason
    assert policy.grants(run.view) == []
    return found


def test_r13_who_has_begun_the_last_block_of_its_quota_gets_as_many_ahead() -> None:
    run = story()
    assert granted(run) == {}
    run.train("alpha", 0)
    assert granted(run) == {}, "one of its quota is not begun"
    assert run.says("alpha", run.starting(1)) == ""
    assert granted(run) == {"alpha": 2}


def test_r13_who_has_delivered_holds_a_quota_of_the_next_round_and_no_more() -> None:
    run = story()
    run.train("alpha", 0, 1)
    assert granted(run) == {"alpha": 2}
    run.deliver("alpha", 0, 1)
    assert granted(run) == {}
    ahead = [one.block for one in run.view.held(run.sites["alpha"][0])]
    run.train("alpha", *ahead)
    assert granted(run) == {}, "trained ahead, and not delivered: it waits for the round"


def test_r13_the_next_rounds_quota_counts_what_was_granted_ahead() -> None:
    run = story()
    run.train("alpha", 0, 1)
    granted(run)
    run.deliver("alpha", 0, 1)
    run.train("beta", 2)
    granted(run)
    run.deliver("beta", 2)
    run.commit()
    assert run.open(alpha=3, beta=1) == ""
    (event,) = policy.grants(run.view)
    assert (event.site, len(event.blocks)) == ("alpha", 1) and "towards its quota" in event.reason


@pytest.mark.parametrize("overlap", ["none", "delayed"])
def test_r15_nothing_is_granted_ahead_of_the_last_round_or_without_overlap(overlap: str) -> None:
    run = story({"rounds": 1} if overlap == "delayed" else None, overlap=overlap)
    run.train("alpha", 0, 1)
    assert granted(run) == {}
    run.deliver("alpha", 0, 1)
    assert granted(run) == {}


def test_r15_merged_and_outstanding_blocks_never_exceed_the_target() -> None:
    run = story({"tokens": 4 * 32})  # four blocks of 32 tokens
    assert run.view.index().block_tokens == 32
    run.train("alpha", 0, 1)
    assert granted(run) == {"alpha": 1}
    run.deliver("alpha", 0, 1)
    assert granted(run) == {}


def test_r2_while_the_run_is_paused_nothing_is_granted_ahead() -> None:
    run = story()
    run.train("alpha", 0, 1)
    assert run.operator(RunPaused(reason="a test")) == ""
    assert policy.grants(run.view) == []


def test_r13_the_audit_names_who_is_granted_more_ahead_than_a_round() -> None:
    run = story()
    run.train("alpha", 0, 1)
    run.deliver("alpha", 0, 1)
    assert run.grant("alpha", 3, 4, 5) == ""
    assert audited(run).violations == []
    run.tick()
    assert run.grant("alpha", 6) == ""
    (wrong,) = audited(run).violations
    assert (wrong.promise, wrong.rule, wrong.site) == ("P2", "R13", "alpha")
    assert wrong.expected == "3 blocks at most"
