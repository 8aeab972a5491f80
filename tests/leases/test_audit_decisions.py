"""Which void events are normal, and which void decisions break a promise."""

from __future__ import annotations

import pytest

from eventlog.codec import encode
from eventlog.events import (
    COORDINATOR,
    CoordinatorTick,
    LeaseStolen,
    RunPaused,
    SiteDeparting,
)
from tests.leases.stories import (
    audited,
    broken,
    delivered,
)
from tests.support.scenario import name


def test_a_decision_of_an_ended_term_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    old = scenario.view.run().term
    scenario.elect("another")
    assert scenario.decide(CoordinatorTick(tick=1), term=old) != ""
    found = audited(scenario)
    assert found.ok
    assert [one.sequence for one in found.void] == [scenario.last[0]]


def test_a_commit_of_an_ended_term_merges_nothing() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    commit, old = scenario.committing(), scenario.view.run().term
    scenario.elect("another")
    assert scenario.decide(commit, term=old) != ""
    assert scenario.decide(scenario.committing()) == ""
    found = audited(scenario)
    assert found.ok and found.epochs[0].merged == 3 and found.versions == 1


def test_a_decision_of_a_term_that_nobody_claimed_is_found() -> None:
    scenario = delivered()
    assert scenario.decide(CoordinatorTick(tick=1), term=10_000) != ""
    assert broken(audited(scenario)) == [("P1", "R5", scenario.last[0])]


def test_a_decision_that_skips_the_one_before_it_is_found() -> None:
    scenario = delivered()
    void = scenario.forged(COORDINATOR, CoordinatorTick(tick=1), previous="another one")
    assert void != ""
    assert broken(audited(scenario)) == [("P1", "R5", scenario.last[0])]


def test_a_grant_of_what_somebody_holds_is_found() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3) == ""
    assert scenario.grant("beta", 3, 4).startswith("in part")
    assert broken(audited(scenario)) == [("P1", "R2", scenario.last[0])]


def test_a_second_departure_of_one_incarnation_is_found() -> None:
    scenario = delivered()
    assert scenario.depart("beta") == ""
    assert scenario.depart("beta") != ""
    assert broken(audited(scenario)) == [("P4", "R4", scenario.last[0])]


def test_a_grant_that_a_pause_overtook_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.operator(RunPaused(reason="maintenance")) == ""
    assert scenario.grant("alpha", 3) != ""
    found = audited(scenario)
    assert found.ok and [one.type for one in found.void] == ["lease.granted"]


def test_a_grant_decided_in_full_knowledge_of_a_pause_is_found() -> None:
    scenario = delivered()
    assert scenario.operator(RunPaused(reason="maintenance")) == ""
    scenario.tick()
    assert scenario.grant("alpha", 3) != ""
    assert broken(audited(scenario)) == [("P1", "R2", scenario.last[0])]


def test_a_steal_that_a_start_overtook_leaves_the_block_where_it_is() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3, 4) == ""
    assert scenario.says("alpha", scenario.starting(3)) == ""
    stolen = LeaseStolen(
        incarnation=scenario.sites["alpha"], site="alpha", epoch=0, blocks=(3, 4), reason="idle"
    )
    assert scenario.decide(stolen).startswith("in part")
    assert scenario.says("alpha", scenario.completing(3)) == ""
    scenario.commit()
    assert scenario.open(alpha=1) == ""
    scenario.deliver("alpha", 3)
    scenario.commit()
    found = audited(scenario)
    assert found.ok and (found.blocks_stolen, found.epochs[0].merged) == (1, 4)


def test_a_grant_that_a_departure_overtook_is_returned_by_it() -> None:
    scenario = delivered()
    assert scenario.says("alpha", SiteDeparting(code="drained", reason="asked to")) == ""
    assert scenario.grant("alpha", 3) == ""
    assert scenario.depart("alpha") == ""
    assert scenario.state(3) == "available"
    assert scenario.grant("beta", 3) == ""
    found = audited(scenario)
    assert found.ok and found.void == []


@pytest.mark.parametrize("payload", [b"no event at all", b"\x80"])
def test_bytes_that_are_no_event_on_the_coordinators_subject_are_found(payload: bytes) -> None:
    scenario = delivered()
    assert scenario.raw(COORDINATOR, payload) != ""
    assert broken(audited(scenario)) == [("P4", "R6", scenario.last[0])]


def test_a_forged_source_on_a_sites_subject_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    commit = scenario.committing()
    envelope = scenario.envelope(COORDINATOR, commit)
    assert scenario.raw("site.beta", encode(commit, envelope)) != ""
    found = audited(scenario)
    assert found.ok and found.versions == 0 and found.epochs[0].merged == 0
    assert [one.type for one in found.void] == ["round.committed"]


def test_what_sites_say_in_vain_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.apply("alpha", 0, name("wrong parameters")) != ""
    assert scenario.says("alpha", scenario.starting(4)) != ""
    assert scenario.says("alpha", scenario.delivery(2)) != ""
    refused = scenario.last
    assert scenario.refuse(refused, "alpha", "void") == ""
    scenario.commit()
    found = audited(scenario)
    assert found.ok
    kinds = ["version.applied", "block.started", "delta.published"]
    assert [one.type for one in found.void] == kinds
