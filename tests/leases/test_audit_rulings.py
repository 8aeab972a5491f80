"""Decisions that the lease table carries out and no rule allows: a dishonest coordinator is named.

Each test lets it decide one thing it must not, and sees exactly one finding: promise, rule,
sequence, site, block. Its twin decides the same where it may, and nothing is found.
"""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.events import Cut, LeaseStolen, RoundOpened, SiteDeparting
from leases.outliers import claim_holds
from tests.leases.stories import alone, assert_clean, audited, delivered, granted, speak
from tests.support.scenario import Scenario

# -- R13: rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["quorum", "grace_ticks", "deadline_ticks"])
def test_r13_a_round_opens_as_the_configuration_says(field: str) -> None:
    scenario = granted()
    scenario.work("alpha", 0)
    scenario.work("beta", 1)
    scenario.commit()
    assert_clean(scenario)
    fields: dict[str, Any] = {"quorum": 2, "grace_ticks": 3, "deadline_ticks": 20}
    fields[field] += 1
    opened = RoundOpened(round=2, base_version=1, quotas=(), reason="a test", **fields)
    assert scenario.decide(opened) == ""
    assert alone(scenario) == ("P2", "R13", "", "")


def test_r13_a_quota_is_at_most_h() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha")
    assert scenario.open(alpha=4) == ""
    assert alone(scenario) == ("P2", "R13", "alpha", "")


def test_r13_a_quota_is_for_who_lives() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha")
    assert scenario.says("alpha", SiteDeparting(code="walltime", reason="its job ends")) == ""
    assert scenario.depart("alpha", "walltime") == ""
    scenario.tick()
    assert scenario.open(alpha=1) == ""
    assert alone(scenario) == ("P4", "R13", "alpha", "")


def test_r13_a_cut_leaves_out_nobody_who_was_in() -> None:
    scenario = delivered()
    scenario.tick()
    whole = scenario.closing()
    part = Cut(delta=whole.deltas[0].delta, site="alpha", tokens=64, weight=1.0)
    assert scenario.decide(scenario.closing(deltas=[part], tokens=64)) == ""
    assert alone(scenario) == ("P1", "R13", "beta", "")


def test_r13_a_delta_that_came_behind_the_last_decision_may_be_overlooked() -> None:
    scenario = granted()
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    scenario.train("beta", 1)
    scenario.tick(3)
    cut = scenario.closing()
    scenario.deliver("beta", 1)
    assert scenario.decide(cut) == ""
    assert [one.rule for one in audited(scenario).violations] == []


def test_r13_a_cut_waits_for_who_holds_blocks_until_grace_or_deadline() -> None:
    scenario = granted(rounds={"quorum": 1, "grace_s": 6.0, "deadline_s": 40.0})
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    scenario.tick(2)
    assert scenario.decide(scenario.closing()) == ""
    assert alone(scenario) == ("P2", "R13", "beta", "")


@pytest.mark.parametrize("rounds", [{"quorum": 1, "grace_s": 6.0, "deadline_s": 40.0}])
def test_r13_a_cut_after_grace_is_in_time(rounds: dict[str, Any]) -> None:
    scenario = granted(rounds=rounds)
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    scenario.tick(3)
    scenario.commit()
    assert_clean(scenario)


def test_r13_a_cut_at_the_deadline_needs_no_quorum() -> None:
    scenario = granted(rounds={"quorum": 2, "grace_s": 2.0, "deadline_s": 8.0})
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    scenario.tick(3)
    speak(scenario, "beta")
    scenario.tick(1)
    scenario.commit()
    assert_clean(scenario)


def test_p8_a_delta_a_thousand_times_as_large_must_not_be_cut() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha", "beta", "gamma")
    assert scenario.open(alpha=1, beta=1, gamma=1) == ""
    for block, site, norm in ((0, "alpha", 1.0), (1, "beta", 1.1), (2, "gamma", 1000.0)):
        assert scenario.grant(site, block) == ""
        scenario.train(site, block)
        scenario.deliver(site, block, norm=norm)
    assert scenario.decide(scenario.closing()) == ""
    assert alone(scenario) == ("P8", "R14", "gamma", "")
    assert "limits.outlier_factor" in audited(scenario).violations[0].what


def test_p8_what_claims_within_their_tolerance_hide_is_no_reproach() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha", "beta", "gamma")
    assert scenario.open(alpha=1, beta=1, gamma=1) == ""
    least, most = 1.0 - 1 / 64, 1 / (1.0 - 1 / 64)  # of blobs whose norms are 1 and 20
    norms = {"alpha": least * 1.0000001, "beta": least * 1.0000001, "gamma": 20 * most * 0.9999999}
    assert claim_holds(norms["alpha"], 1.0) and claim_holds(norms["gamma"], 20.0)
    for block, (site, norm) in enumerate(norms.items()):
        assert scenario.grant(site, block) == ""
        scenario.train(site, block)
        scenario.deliver(site, block, norm=norm)
    scenario.commit()
    assert_clean(scenario)


# -- R2, R10, R15: grants -------------------------------------------------------------------------


def test_r13_blocks_are_granted_in_an_open_round_only() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha")
    assert scenario.grant("alpha", 3) == ""
    assert alone(scenario) == ("P2", "R13", "alpha", "0:3")


def test_r10_a_joiner_gets_blocks_after_it_holds_a_version() -> None:
    scenario = granted()
    assert scenario.admit("gamma", scenario.join("gamma")) == ""
    scenario.tick()
    assert scenario.grant("gamma", 4) == ""
    assert alone(scenario) == ("P4", "R10", "gamma", "0:4")
    assert "no version" in audited(scenario).violations[0].what


def test_r15_no_more_than_the_target_is_handed_out() -> None:
    scenario = granted(target={"tokens": 64})
    assert scenario.grant("alpha", 0, 1, 2) == ""
    assert alone(scenario) == ("P1", "R15", "alpha", "0:0")


def test_r15_no_block_of_an_epoch_behind_the_last_is_granted() -> None:
    scenario = granted(target={"epochs": 1})
    assert scenario.grant("alpha", 0, 1, 2) == ""
    assert scenario.grant("beta", 3, 4, 5) == ""
    assert scenario.grant("beta", 0, epoch=1) == ""
    rules = [(one.rule, one.block) for one in audited(scenario).violations]
    assert rules == [("R15", "1:0")] * 2  # beyond the target's tokens, and its epochs


def test_r2_a_block_that_is_granted_twice_is_named() -> None:
    scenario = granted()
    assert scenario.grant("alpha", 3) == ""
    assert scenario.grant("beta", 3) != ""
    assert alone(scenario) == ("P1", "R2", "beta", "0:3")


def test_r2_a_started_block_that_is_stolen_is_named() -> None:
    scenario = granted()
    assert scenario.grant("alpha", 3) == ""
    assert scenario.says("alpha", scenario.starting(3)) == ""
    scenario.tick()
    fields = {"incarnation": scenario.sites["alpha"], "site": "alpha", "epoch": 0}
    stolen = {**fields, "blocks": (3,), "reason": "slow"}
    assert scenario.decide(LeaseStolen.model_validate(stolen)) != ""
    assert alone(scenario) == ("P1", "R2", "alpha", "0:3")
