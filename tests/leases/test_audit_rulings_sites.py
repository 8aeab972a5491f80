"""As `test_audit_rulings`: refusals, quarantine, departures, joins, the end, and blobs."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.events import (
    BlobsReleased,
    BlockQuarantined,
    DeltaRefused,
    RunStopped,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteRefused,
    SnapshotSaved,
)
from tests.leases.stories import alone, assert_clean, audited, delivered, ending, granted, speak
from tests.support.scenario import Scenario, name

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
    assert_clean(scenario)


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
    assert_clean(scenario)


def test_r8_a_departure_that_a_heartbeat_overtook_breaks_nothing() -> None:
    scenario = granted()
    scenario.tick(8)
    speak(scenario, "alpha")
    speak(scenario, "beta")
    depart(scenario, "beta", "lost")
    assert_clean(scenario)


def test_r14_three_refusals_in_a_row_make_a_site_unfit() -> None:
    scenario = granted()
    refused_times(scenario, "beta", "beta", "beta")
    scenario.tick()
    depart(scenario, "beta", "unfit")
    assert_clean(scenario)


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
