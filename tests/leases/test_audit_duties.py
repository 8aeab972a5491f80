"""A coordinator that ticks and leaves undone what is due is named (P2): nobody else can do it.

Each test leaves one thing undone, and sees exactly one finding; until the bound it sees none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventlog.events import SiteDeparting
from tests.leases.stories import audited, delivered
from tests.support.scenario import Scenario, name

K = 8
LIMITS = {"transfer_s": 20.0}  # 10 ticks


def passes(scenario: Scenario, num: int, *speaking: str) -> None:
    """So many ticks, in which these sites speak."""
    for _ in range(num):
        scenario.tick()
        for site in speaking:
            assert scenario.apply(site, scenario.view.run().version) == ""


def found(scenario: Scenario) -> list[tuple[str, str, str]]:
    return [(one.promise, one.rule, one.site) for one in audited(scenario).violations]


def silent() -> Scenario:
    """beta says nothing; alpha has delivered its quota."""
    scenario = Scenario(target={"epochs": 1}, limits=LIMITS, rounds={"deadline_s": 4000.0})
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=1) == ""
    scenario.work("alpha", 0)
    return scenario


def test_r8_who_is_silent_for_k_ticks_and_k_more_must_be_departed() -> None:
    scenario = silent()
    passes(scenario, 2 * K, "alpha")
    assert found(scenario) == []
    passes(scenario, K + 1, "alpha")
    wrong = [one for one in found(scenario) if one[2] == "beta"]
    assert wrong == [("P2", "R8", "beta")]
    passes(scenario, 3 * K, "alpha")
    assert [one for one in found(scenario) if one[2] == "beta"] == wrong, "said once"


def test_r8_a_new_term_begins_to_count_anew() -> None:
    scenario = silent()
    for _ in range(4):
        passes(scenario, 2 * K - 1, "alpha")
        scenario.elect("another")
    assert [one for one in found(scenario) if one[2] == "beta"] == []


def undone() -> dict[str, Callable[[], tuple[Scenario, tuple[str, ...], tuple[str, str, str]]]]:
    """What a coordinator can leave undone: the run before it, who speaks meanwhile, the finding."""

    def leaving() -> Any:
        scenario = silent()
        assert scenario.says("beta", SiteDeparting(code="walltime", reason="its job ends")) == ""
        return scenario, ("alpha", "beta"), ("P2", "R4", "beta")

    def joining() -> Any:
        scenario = silent()
        scenario.join("gamma", manifest_digest=name("other data"))
        return scenario, ("alpha", "beta"), ("P2", "R11", "gamma")

    def void_delta() -> Any:
        scenario = silent()
        assert scenario.says("beta", scenario.delivery(5)) != ""
        return scenario, ("alpha", "beta"), ("P2", "R1", "beta")

    def stale_delta() -> Any:
        scenario = Scenario(target={"epochs": 2}, limits=LIMITS, rounds={"deadline_s": 4000.0})
        scenario.arrive("alpha", "beta")
        for block in (0, 1):
            assert scenario.open(alpha=1, beta=1) == ""
            scenario.work("alpha", block)
            scenario.commit()
        assert scenario.apply("beta", 2) == ""
        assert scenario.open(beta=1) == ""
        assert scenario.grant("beta", 2) == ""
        scenario.train("beta", 2)
        scenario.deliver("beta", 2, base_version=0)
        return scenario, ("alpha", "beta"), ("P2", "R13", "beta")

    def opening() -> Any:
        scenario = delivered()
        scenario.commit()
        return scenario, ("alpha", "beta"), ("P2", "R13", "")

    def granting() -> Any:
        scenario = silent()
        scenario.commit()
        assert scenario.open(beta=2) == ""
        return scenario, ("alpha", "beta"), ("P2", "R13", "beta")

    def closing_an_epoch() -> Any:
        scenario = Scenario(target={"epochs": 2})
        scenario.arrive("alpha")
        assert scenario.open(alpha=3) == ""
        for block in range(6):
            assert scenario.grant("alpha", block) == ""
            scenario.train("alpha", block)
        scenario.deliver("alpha", *range(6))
        scenario.commit()
        assert scenario.open(alpha=1) == ""
        scenario.work("alpha", 0, epoch=1)
        return scenario, ("alpha",), ("P2", "R15", "")

    made = (leaving, joining, void_delta, stale_delta, opening, granting, closing_an_epoch)
    return {one.__name__: one for one in made}


@pytest.mark.parametrize("what", undone())
def test_what_the_log_alone_makes_due_is_done_within_k_ticks(what: str) -> None:
    scenario, speaking, finding = undone()[what]()
    passes(scenario, K, *speaking)
    assert found(scenario) == []
    passes(scenario, 2 * K, *speaking)
    assert found(scenario) == [finding]


def test_r13_a_round_past_its_deadline_is_cut() -> None:
    scenario = Scenario(
        target={"epochs": 1}, limits=LIMITS, rounds={"quorum": 2, "grace_s": 6, "deadline_s": 40}
    )
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=1, beta=1) == ""
    scenario.work("alpha", 0)
    assert scenario.grant("beta", 1) == ""
    passes(scenario, 20 + K + 10, "alpha", "beta")  # deadline, blobs, patience
    assert found(scenario) == []
    passes(scenario, 2 * K, "alpha", "beta")
    assert found(scenario) == [("P2", "R13", "")]
    assert "deadline" in audited(scenario).violations[0].what


def test_r13_a_round_in_which_all_have_delivered_is_cut() -> None:
    scenario = silent()
    assert scenario.says("beta", SiteDeparting(code="drained", reason="asked to")) == ""
    assert scenario.depart("beta", "drained") == ""
    passes(scenario, 4 * K, "alpha")
    assert found(scenario) == [("P2", "R13", "")]
    assert "everybody has delivered" in audited(scenario).violations[0].what


def test_r13_a_logged_cut_is_committed() -> None:
    scenario = Scenario(target={"epochs": 1}, limits=LIMITS)
    scenario.arrive("alpha")
    assert scenario.open(alpha=1) == ""
    scenario.work("alpha", 0)
    assert scenario.decide(scenario.closing()) == ""
    passes(scenario, K + 20, "alpha")
    assert found(scenario) == []
    passes(scenario, 2 * K, "alpha")
    assert found(scenario) == [("P2", "R13", "")]


def test_a_coordinator_that_does_its_duty_is_blamed_for_nothing() -> None:
    scenario = delivered()
    passes(scenario, K, "alpha", "beta")
    scenario.commit()
    assert scenario.open(alpha=3, beta=1) == ""
    scenario.work("alpha", 3, 4, 5)
    passes(scenario, K, "alpha", "beta")
    scenario.commit()
    assert found(scenario) == []
