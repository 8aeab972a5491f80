"""Decisions that the lease table carries out and no rule allows: a dishonest coordinator is named.

Each test lets it decide one thing it must not, and sees exactly one finding: promise, rule,
sequence, site, block. Its twin decides the same where it may, and nothing is found.
"""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.events import (
    BlobsReleased,
    BlockQuarantined,
    Cut,
    DeltaRefused,
    LeaseStolen,
    RoundOpened,
    RunStopped,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteRefused,
    SnapshotSaved,
)
from tests.leases.stories import audited, delivered, ending
from tests.support.scenario import Scenario, name


def alone(scenario: Scenario) -> tuple[str, str, str, str]:
    """Promise, rule, site and block of the one finding, which is about the last event."""
    (one,) = audited(scenario).violations
    assert one.sequence == scenario.last[0] and one.what and one.expected, one
    return (one.promise, one.rule, one.site, one.block)


def clean(scenario: Scenario) -> None:
    assert audited(scenario).violations == []


def granted(**fields: Any) -> Scenario:
    """alpha and beta live; round 1 is open for both."""
    scenario = Scenario(target=fields.pop("target", {"epochs": 1}), **fields)
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=3, beta=3) == ""
    return scenario


def speak(scenario: Scenario, site: str) -> None:
    """A site says something that changes nothing."""
    assert scenario.apply(site, scenario.view.run().version) == ""


# -- R13: rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["quorum", "grace_ticks", "deadline_ticks"])
def test_r13_a_round_opens_as_the_configuration_says(field: str) -> None:
    scenario = granted()
    scenario.work("alpha", 0)
    scenario.work("beta", 1)
    scenario.commit()
    clean(scenario)
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
    clean(scenario)


def test_r13_a_cut_at_the_deadline_needs_no_quorum() -> None:
    scenario = granted(rounds={"quorum": 2, "grace_s": 2.0, "deadline_s": 8.0})
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    scenario.tick(3)
    speak(scenario, "beta")
    scenario.tick(1)
    scenario.commit()
    clean(scenario)


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


# -- P8, R14: refusals and quarantine -------------------------------------------------------------


def refuse(scenario: Scenario, code: str, values: bool = False) -> None:
    delta = scenario.view.deltas("undecided")[0]
    fields = {"delta": delta.token, "site": delta.site, "code": code, "values": values}
    assert scenario.decide(DeltaRefused.model_validate({**fields, "reason": "bad"})) == ""


@pytest.mark.parametrize(("code", "rule"), [("void", "R1"), ("stale", "R13"), ("follows", "R14")])
def test_p8_a_refusal_for_a_cause_that_the_log_does_not_hold(code: str, rule: str) -> None:
    scenario = delivered()
    refuse(scenario, code)
    assert alone(scenario) == ("P8", rule, "alpha", "")


@pytest.mark.parametrize(("code", "values"), [("nonfinite", False), ("blob", True)])
def test_r14_a_refusal_says_whether_it_is_for_values(code: str, values: bool) -> None:
    scenario = delivered()
    refuse(scenario, code, values)
    assert alone(scenario) == ("P8", "R14", "alpha", "")


def test_p8_refusals_with_their_causes() -> None:
    scenario = delivered()
    refuse(scenario, "nonfinite", True)
    refuse(scenario, "blob")
    assert scenario.says("alpha", scenario.delivery(5)) != ""
    assert scenario.refuse(scenario.last, "alpha", "void") == ""
    clean(scenario)


def test_r14_no_block_is_quarantined_without_refusals() -> None:
    scenario = granted()
    assert scenario.decide(BlockQuarantined(epoch=0, block=5, reason="bad")) == ""
    assert alone(scenario) == ("P1", "R14", "", "0:5")


def refused_times(scenario: Scenario, *sites: str) -> None:
    """Each site in turn delivers block 2 and is refused for its values."""
    for site in sites:
        assert scenario.grant(site, 2) == ""
        scenario.train(site, 2)
        delta = scenario.deliver(site, 2)
        assert scenario.refuse(delta, site) == ""


@pytest.mark.parametrize(
    ("sites", "rules"),
    [
        (("alpha", "alpha", "alpha"), ["R14"]),  # beta lives and could try
        (("alpha", "beta"), ["R14"]),
        (("alpha", "beta", "alpha"), []),
    ],
)
def test_r14_a_quarantine_needs_refusals_of_two_sites(
    sites: tuple[str, ...], rules: list[str]
) -> None:
    scenario = granted()
    refused_times(scenario, *sites)
    assert scenario.decide(BlockQuarantined(epoch=0, block=2, reason="bad")) == ""
    assert [one.rule for one in audited(scenario).violations] == rules


# -- R4, R8, R11: departures and joins ------------------------------------------------------------


def depart(scenario: Scenario, site: str, code: str) -> None:
    fields = {"incarnation": scenario.sites[site], "site": site, "code": code, "reason": "gone"}
    assert scenario.decide(SiteDeparted.model_validate(fields)) == ""


@pytest.mark.parametrize("code", ["lost", "drained", "unfit", "replaced", "walltime"])
def test_r8_who_speaks_keeps_its_lease(code: str) -> None:
    scenario = granted()
    scenario.tick(7)
    depart(scenario, "beta", code)
    assert alone(scenario) == ("P4", "R8", "beta", "")


def test_r8_departures_with_their_causes() -> None:
    scenario = granted()
    scenario.tick(8)
    speak(scenario, "alpha")
    depart(scenario, "beta", "lost")
    scenario.join("alpha", predecessor=scenario.sites["alpha"])
    depart(scenario, "alpha", "replaced")
    scenario.arrive("gamma")
    assert scenario.says("gamma", SiteDeparting(code="trainer", reason="it died")) == ""
    depart(scenario, "gamma", "trainer")
    clean(scenario)


def test_r8_a_departure_that_a_heartbeat_overtook_breaks_nothing() -> None:
    scenario = granted()
    scenario.tick(8)
    speak(scenario, "alpha")
    speak(scenario, "beta")
    depart(scenario, "beta", "lost")
    clean(scenario)


def test_r14_three_refusals_in_a_row_make_a_site_unfit() -> None:
    scenario = granted()
    refused_times(scenario, "beta", "beta", "beta")
    scenario.tick()
    depart(scenario, "beta", "unfit")
    clean(scenario)


def admit(scenario: Scenario, site: str, join: Any) -> None:
    assert scenario.decide(SiteAdmitted(site=site, join=join, reason="it fits")) == ""


def test_r11_a_foreign_manifest_is_not_admitted() -> None:
    scenario = granted()
    join = scenario.join("gamma", manifest_digest=name("other data"))
    scenario.tick()
    admit(scenario, "gamma", join)
    assert alone(scenario) == ("P8", "R11", "gamma", "")
    assert audited(scenario).violations[0].expected == "'manifest'"


def test_r11_another_arithmetic_is_not_admitted() -> None:
    scenario = granted()
    join = scenario.join("gamma", arithmetic={"decode": name("other"), "step": "dd" * 32})
    scenario.tick()
    admit(scenario, "gamma", join)
    assert audited(scenario).violations[0].expected == "'arithmetic'"


@pytest.mark.parametrize("code", ["manifest", "arithmetic", "twin", "backoff", "finished"])
def test_r11_who_fits_is_not_refused(code: str) -> None:
    scenario = granted()
    join = scenario.join("gamma")
    scenario.tick()
    fields = {"site": "gamma", "join": join, "code": code, "final": False, "reason": "no"}
    assert scenario.decide(SiteRefused.model_validate(fields)) == ""
    assert alone(scenario) == ("P8", "R11", "gamma", "")


# -- R2, R20: the end, and blobs ------------------------------------------------------------------


def test_r2_a_stopped_run_ends_after_its_sites_have_left() -> None:
    scenario = granted()
    assert scenario.operator(RunStopped(reason="enough")) == ""
    scenario.tick()
    end = ending(scenario, outcome="stopped", version=0, momentum_digest=name("m"))
    assert scenario.decide(end) == ""
    assert alone(scenario) == ("P2", "R2", "", "")


def test_r15_a_run_that_ends_before_its_target_is_found() -> None:
    scenario = granted()
    assert scenario.decide(ending(scenario, version=0)) != ""
    assert alone(scenario)[:2] == ("P1", "R15")


def versions(**sections: Any) -> Scenario:
    """Three versions, a snapshot of each."""
    scenario = Scenario(target={"rounds": 9}, **sections)
    scenario.arrive("alpha")
    for number in range(1, 4):
        assert scenario.open(alpha=1) == ""
        scenario.work("alpha", number)
        scenario.commit()
        blob = name(f"snapshot {number}")
        saved = SnapshotSaved(version=number, blob=blob, num_bytes=1, reason="a test")
        assert scenario.decide(saved) == ""
        assert scenario.apply("alpha", number) == ""
    return scenario


def release(scenario: Scenario, *blobs: str) -> None:
    assert scenario.decide(BlobsReleased(blobs=blobs, reason="a test")) == ""


@pytest.mark.parametrize("what", ["update 3", "snapshot 2", "snapshot 3", "initial blob"])
def test_r20_what_recovery_needs_is_not_released(what: str) -> None:
    scenario = versions()
    release(scenario, name(what))
    assert alone(scenario) == ("P3", "R20", "", "")


def test_r20_a_delta_that_waits_for_its_merge_is_not_released() -> None:
    scenario = versions()
    assert scenario.open(alpha=1) == ""
    scenario.work("alpha", 0)
    scenario.tick()
    release(scenario, scenario.view.deltas("undecided")[0].blob)
    assert alone(scenario) == ("P3", "R20", "", "")


def test_r20_what_two_snapshots_cover_may_go_and_with_retention_all_nothing() -> None:
    for retention, rules in (("recovery", []), ("all", ["R20"])):
        scenario = versions(snapshots={"retention": retention})
        release(scenario, name("update 1"))
        assert [one.rule for one in audited(scenario).violations] == rules
