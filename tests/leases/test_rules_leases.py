"""Rules of who may hold what: grants, steals, reclaims, deliveries (R2, R4, R7, R12, R14)."""

from __future__ import annotations

import pytest

from eventlog.events import (
    BlockQuarantined,
    DrainRequested,
    EpochClosed,
    LeaseReclaimed,
    LeaseStolen,
    RoundOpened,
    RunPaused,
    RunResumed,
    RunStopped,
    SiteDeparting,
)
from leases import policy
from outer.facts import Facts, Verdict
from outer.rounds import decide, refusals
from tests.support.scenario import Scenario, name


def stealing(run: Scenario, site: str, *blocks: int) -> LeaseStolen:
    return LeaseStolen(
        incarnation=run.sites[site], site=site, epoch=0, blocks=blocks, reason="a test"
    )


def reclaiming(run: Scenario, site: str, *blocks: int) -> LeaseReclaimed:
    named = tuple((0, block) for block in blocks)
    return LeaseReclaimed(incarnation=run.sites[site], site=site, blocks=named, reason="a test")


@pytest.fixture
def run() -> Scenario:
    """Site a holds 0 leased, 1 in training, 2 trained, 3 delivered; site b lives."""
    scenario = Scenario()
    scenario.arrive("a", "b")
    scenario.open(a=3, b=3)
    scenario.grant("a", 0, 1, 2, 3)
    scenario.train("a", 3)
    scenario.deliver("a", 3)
    scenario.train("a", 2)
    assert scenario.says("a", scenario.starting(1)) == ""
    assert scenario.states(0, 1, 2, 3) == ["leased", "training", "trained", "delivered"]
    return scenario


def test_r2_a_steal_takes_unstarted_blocks_only(run: Scenario) -> None:
    said = run.decide(stealing(run, "a", 0, 1, 2, 3, 4))
    assert said.startswith("in part") and "0:1" in said and "0:4" in said
    assert run.states(0, 1, 2, 3) == ["available", "training", "trained", "delivered"]
    assert "does not live" in run.decide(
        stealing(run, "a", 0).model_copy(update={"incarnation": (1, "nobody")})
    )


def test_r2_only_the_coordinator_moves_leases(run: Scenario) -> None:
    for event in (stealing(run, "a", 0), reclaiming(run, "a", 0), run.granting("b", 4)):
        assert "may not come from site.b" in run.says("b", event)
        assert "may not come from operator" in run.operator(event)
    assert run.states(0, 4) == ["leased", "available"]


def test_r2_a_site_starts_completes_and_delivers_only_what_it_holds(run: Scenario) -> None:
    assert "not leased by the writer" in run.says("b", run.starting(0))
    assert "not training by the writer" in run.says("b", run.completing(1))
    assert "not trained by the writer" in run.says("b", run.delivery(2))
    assert run.states(0, 1, 2) == ["leased", "training", "trained"]


def test_r2_a_decision_about_a_site_names_an_incarnation_of_it(run: Scenario) -> None:
    mine = run.sites["a"]
    for event in (
        run.granting("b", 4).model_copy(update={"incarnation": mine}),
        stealing(run, "b", 0).model_copy(update={"incarnation": mine}),
        reclaiming(run, "b", 0).model_copy(update={"incarnation": mine}),
    ):
        assert "is one of a, not of b" in run.decide(event)
    assert run.states(0, 4) == ["leased", "available"]
    assert "is unknown" in run.refuse(run.view.deltas("undecided")[0].token, "b")


def test_r2_paused_no_grants_and_no_rounds_but_started_blocks_are_delivered(run: Scenario) -> None:
    assert run.operator(RunPaused(reason="a holiday")) == ""
    assert run.grant("b", 4) == "the run is paused"
    assert not policy.grants(run.view)
    assert run.says("a", run.completing(1)) == ""
    run.commit()
    assert run.deliver("a", 1, 2)
    assert run.open(a=1) == "the run is paused"
    assert not any(isinstance(one, RoundOpened) for one in decide(run.view, Facts()))
    assert run.operator(RunResumed(reason="back")) == ""
    assert any(isinstance(one, RoundOpened) for one in decide(run.view, Facts()))


def test_r2_operator_events_are_requests_that_fit_a_state(run: Scenario) -> None:
    assert run.operator(RunResumed(reason="x")) == "the run is running, not paused"
    assert run.operator(RunStopped(reason="x")) == ""
    assert run.operator(RunStopped(reason="x")) == "the run is stopping already"
    assert run.operator(RunPaused(reason="x")) == "the run is stopping, not running"
    assert run.operator(DrainRequested(site="nowhere", reason="x")) == "no live site nowhere"
    assert run.grant("b", 4) == "the run is stopping"


def test_r2_grants_that_a_departure_overtook_stand_and_so_do_those_behind_them(
    run: Scenario,
) -> None:
    """The site said good-bye while the coordinator wrote: the other hubs, who do not read that,
    trust what it wrote, in the next epoch too (R15, R16)."""
    assert run.says("b", SiteDeparting(code="drained", reason="asked")) == ""
    assert not [one for one in policy.grants(run.view) if one.site == "b"]
    assert run.decide(run.granting("b", 4, 5), run.granting("a", 0, epoch=1)) == ""
    assert run.depart("b") == ""
    assert run.states(4, 5) == ["available", "available"]
    assert run.states(0, epoch=1) == ["leased"]


def test_r2_a_drained_site_gets_no_more(run: Scenario) -> None:
    assert run.operator(DrainRequested(site="b", reason="maintenance")) == ""
    assert {event.site for event in policy.grants(run.view)} <= {"a"}


def test_r4_a_departure_returns_everything_undelivered_and_leaves_deltas(run: Scenario) -> None:
    assert run.depart("a") == ""
    assert run.states(0, 1, 2, 3) == ["available", "available", "available", "delivered"]
    assert [delta.state for delta in run.view.deltas("undecided")] == ["undecided"]
    run.commit()
    assert run.state(3) == "merged"


def test_r4_a_reclaim_of_all_undelivered_blocks_takes_started_ones_too(run: Scenario) -> None:
    assert run.decide(reclaiming(run, "a", 0, 1, 2)) == ""
    assert run.states(0, 1, 2, 3) == ["available", "available", "available", "delivered"]


@pytest.mark.parametrize("named", [(0, 1), (0, 2), (1, 2), (1,)])
def test_r4_a_reclaim_of_some_takes_the_unstarted_ones_alone(
    run: Scenario, named: tuple[int, ...]
) -> None:
    assert "not all are taken" in run.decide(reclaiming(run, "a", *named))
    assert run.states(1, 2) == ["training", "trained"]
    assert run.state(0) == ("available" if 0 in named else "leased")


def test_r4_a_delivery_just_before_a_reclaim_does_not_save_the_rest(run: Scenario) -> None:
    """R1: each block of a reclaim is judged by itself; the decision was taken before the delta."""
    run.commit()
    decision = reclaiming(run, "a", 0, 1, 2)
    run.deliver("a", 2)
    assert run.decide(decision).startswith("in part")
    assert run.states(0, 1, 2) == ["available", "available", "delivered"]


def test_r4_delivered_blocks_leave_only_by_commit_or_refusal(run: Scenario) -> None:
    assert run.decide(reclaiming(run, "a", 3)) != ""
    assert run.decide(stealing(run, "a", 3)) != ""
    assert run.grant("b", 3) != ""
    assert run.state(3) == "delivered"
    assert run.refuse(run.view.deltas("undecided")[0].token, "a") == ""
    assert run.state(3) == "available"


def test_r4_merged_is_final(run: Scenario) -> None:
    delta = run.view.deltas("undecided")[0].token
    run.commit()
    assert "is merged" in run.refuse(delta, "a")
    assert run.grant("b", 3) != "" and run.decide(reclaiming(run, "a", 3)) != ""
    assert run.decide(BlockQuarantined(epoch=0, block=3, reason="x")) != ""
    assert run.state(3) == "merged"


def test_r4_a_zombie_can_not_start_complete_or_deliver(run: Scenario) -> None:
    zombie = run.sites["a"]
    events = (run.starting(0), run.completing(1), run.delivery(2))
    run.depart("a")
    run.arrive("a")
    run.grant("a", 0, 1, 2)
    for event in events:
        assert "does not live here and now" in run.says("a", event, zombie)
    assert run.states(0, 1, 2) == ["leased", "leased", "leased"]


def test_r7_only_a_block_whose_start_stands_can_be_completed(run: Scenario) -> None:
    assert "is leased by incarnation" in run.says("a", run.completing(0))
    assert run.says("a", run.starting(0)) == ""
    assert "is training by incarnation" in run.says("a", run.starting(0))
    assert run.says("a", run.completing(0)) == ""


def test_r12_a_delta_is_refused_whole(run: Scenario) -> None:
    run.commit()
    assert run.says("a", run.completing(1)) == ""
    delta = run.deliver("a", 1, 2)
    assert run.refuse(delta, "a") == ""
    assert run.states(1, 2) == ["available", "available"]


@pytest.mark.parametrize(
    "change", [{"blocks": "twice"}, {"tokens": 31}, {"base_version": 1}, {"epoch": 1}]
)
def test_r12_a_delta_that_claims_what_is_not_so_is_void(run: Scenario, change: dict) -> None:
    run.commit()
    delta = run.delivery(2, base_version=change.get("base_version", 1) + ("base_version" in change))
    (part,) = delta.blocks
    parts = {
        "blocks": (part, part),
        "tokens": (part.model_copy(update={"tokens": 31}),),
        "epoch": (part.model_copy(update={"epoch": 1}),),
        "base_version": (part,),
    }[next(iter(change))]
    assert run.says("a", delta.model_copy(update={"blocks": parts})) != ""
    assert run.state(2) == "trained"


def test_one_undecided_delta_per_incarnation_and_a_last_one(run: Scenario) -> None:
    assert "is undecided" in run.says("a", run.delivery(2))
    assert run.says("a", run.delivery(2, last=True)) == ""
    assert run.states(2, 3) == ["delivered", "delivered"]


def test_a_refusal_for_values_refuses_the_last_delta_that_followed_too(run: Scenario) -> None:
    first = run.view.deltas("undecided")[0].token
    run.deliver("a", 2, last=True)
    decided = refusals(run.view, Facts({first[0]: Verdict("nonfinite", "NaN")}))
    kinds = [(one.type, getattr(one, "code", "")) for one in decided]
    assert kinds == [
        ("delta.refused", "nonfinite"),
        ("lease.reclaimed", ""),
        ("delta.refused", "follows"),
    ]
    assert run.decide(*decided) == ""
    assert run.states(0, 1, 2, 3) == ["available"] * 4


def test_a_last_delta_between_the_decision_and_its_append_is_refused_next(run: Scenario) -> None:
    first = run.view.deltas("undecided")[0].token
    decided = refusals(run.view, Facts({first[0]: Verdict("nonfinite", "NaN")}))
    run.deliver("a", 2, last=True)
    assert run.decide(*decided).startswith("in part")
    (follows,) = refusals(run.view, Facts())
    assert follows.code == "follows" and not follows.values
    run.decide(follows)
    later = run.work("a", 4)
    assert not refusals(run.view, Facts({later[0]: Verdict()}))


def test_r14_only_values_and_form_count_against_a_site() -> None:
    codes = ("void", "stale", "blob", "form", "nonfinite", "outlier", "follows")
    assert [code for code in codes if Verdict(code).values] == ["form", "nonfinite", "outlier"]


def test_r14_a_quarantined_block_is_counted_and_closes_its_epoch() -> None:
    run = Scenario({"epochs": 1}, num_sequences=8)
    run.arrive("a")
    run.open(a=2)
    bad = BlockQuarantined(epoch=0, block=1, reason="refused at two sites")
    assert run.decide(bad) == ""
    assert run.decide(bad) == "block 0:1 is quarantined"
    assert run.decide(bad.model_copy(update={"epoch": 3})) == "epoch 3 was never granted"
    assert policy.grantable(run.view, 9) == [(0, 0)]
    run.work("a", 0)
    run.commit()
    (closed,) = policy.epochs(run.view)
    assert isinstance(closed, EpochClosed)
    assert (closed.blocks, closed.tokens, closed.num_quarantined) == (2, 32, 1)
    assert run.decide(closed) == ""
    outcome = decide(run.view, Facts(digests=(name("t"), name("m"), name("e"))))
    assert not policy.grantable(run.view, 9)
    assert [one.type for one in outcome] == []  # the final version is stored first
