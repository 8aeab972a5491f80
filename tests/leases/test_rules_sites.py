"""Rules of the sites' lives: ticks, loss, twins and successors (R8, R9, R11)."""

from __future__ import annotations

import pytest

from eventlog.config import Timing
from eventlog.events import CoordinatorTick, Heartbeat, RunStopped, SiteDeparting
from leases import policy
from tests.support.scenario import Scenario, joining, name

BEAT = Heartbeat(phase="training", step=1, tokens=32, tokens_per_s=8.0)
K = 8  # ticks of a run of few sites with lease_s = 16 s


def departed(run: Scenario) -> list[tuple[str, str]]:
    return [(event.site, event.code) for event in policy.departures(run.view)]


def answers(run: Scenario) -> list[tuple[str, str]]:
    return [(one.type, getattr(one, "code", "")) for one in policy.joins(run.view)]


def test_r8_a_site_is_lost_k_ticks_after_its_last_event() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.tick(K - 1)
    assert run.says("b", BEAT) == ""
    assert departed(run) == []
    run.tick()
    assert departed(run) == [("a", "lost")]
    run.decide(*policy.departures(run.view))
    run.tick(K - 2)
    assert departed(run) == []
    run.tick()
    assert departed(run) == [("b", "lost")]


def test_r8_only_ticks_of_the_current_term_count() -> None:
    run = Scenario()
    run.arrive("a")
    run.tick(5)
    assert run.says("a", BEAT) == ""
    run.tick(K - 1)
    run.elect("two")
    run.tick(K - 1)
    assert departed(run) == []
    run.tick()
    assert departed(run) == [("a", "lost")]


def test_r8_a_join_is_no_sign_of_life_of_the_incarnation() -> None:
    run = Scenario()
    run.arrive("a")
    run.tick(K - 1)
    run.join("a")
    run.tick()
    assert departed(run) == [("a", "replaced")]


def test_r8_ticks_of_a_term_are_numbered_from_one() -> None:
    run = Scenario()
    assert "expected 1" in run.decide(CoordinatorTick(tick=2))
    run.tick(2)
    assert "expected 3" in run.decide(CoordinatorTick(tick=2))
    assert (run.view.run().term_ticks, run.view.run().ticks) == (2, 2)
    run.elect("two")
    run.tick()
    assert (run.view.run().term_ticks, run.view.run().ticks) == (1, 3)


@pytest.mark.parametrize("num_live", [0, 1, 50, 51, 500, 5000])
@pytest.mark.parametrize("lease_s", [4.0, 16.0, 30.0])
def test_r8_r9_k_ticks_are_at_least_four_heartbeats(lease_s: float, num_live: int) -> None:
    timing = Timing.of(lease_s)
    assert timing.heartbeat_s(num_live) == max(1.0, num_live / 50)
    assert timing.lost_ticks(num_live) * timing.tick_s >= 4 * timing.heartbeat_s(num_live)
    assert timing.lost_ticks(1) * timing.tick_s == lease_s


def test_r11_a_join_fences_nothing_an_admission_does() -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0)
    join = run.join("a")
    assert run.says("a", run.starting(0)) == ""
    assert "lives as incarnation" in run.admit("a", join)
    old = run.sites["a"]
    run.depart("a")
    assert run.admit("a", join) == ""
    assert "does not live" in run.says("a", BEAT, old)
    assert run.says("a", BEAT) == ""


def test_r11_a_twin_of_a_speaking_site_is_refused_for_now() -> None:
    run = Scenario()
    run.arrive("a")
    run.join("a")
    assert answers(run) == []
    run.says("a", BEAT)
    (refusal,) = policy.joins(run.view)
    assert (refusal.code, refusal.final) == ("twin", False)
    assert run.decide(refusal) == ""
    assert answers(run) == [] and departed(run) == []


def test_r11_a_predecessor_silent_for_k_ticks_is_replaced() -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0)
    join = run.join("a")
    run.tick(K - 1)
    assert departed(run) == [] and answers(run) == []
    run.tick()
    assert departed(run) == [("a", "replaced")]
    run.decide(*policy.departures(run.view))
    assert answers(run) == [("site.admitted", "")]
    assert run.admit("a", join) == ""
    assert run.state(0) == "available"


def test_r11_a_predecessor_named_by_its_lock_is_replaced_at_once() -> None:
    run = Scenario()
    run.arrive("a")
    run.join("a", predecessor=run.sites["a"])
    assert departed(run) == [("a", "replaced")]


def test_r11_a_joiner_can_name_only_a_predecessor_of_its_own_name() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.join("c", predecessor=run.sites["a"])
    assert departed(run) == []
    run.join("b", predecessor=run.sites["a"])
    assert departed(run) == []


def test_r11_a_newer_join_supersedes_the_one_before() -> None:
    run = Scenario()
    first, second = run.join("a"), run.join("a")
    assert run.view.answer(first[0]).state == "superseded"
    assert "is superseded" in run.admit("a", first)
    assert run.admit("a", second) == ""
    assert "is admitted" in run.admit("a", second)


def test_r11_an_answer_names_a_join_of_that_site() -> None:
    run = Scenario()
    join = run.join("a")
    assert "there is no join" in run.admit("b", join)
    assert "there is no join" in run.admit("a", (join[0], "another"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"manifest_digest": name("other data")}, "manifest"),
        ({"arithmetic": {**joining().arithmetic, "step": name("fused")}}, "arithmetic"),
    ],
)
def test_p8_who_does_not_fit_the_run_is_refused_for_good(changes: dict, code: str) -> None:
    run = Scenario()
    run.join("a", **changes)
    (refusal,) = policy.joins(run.view)
    assert (refusal.code, refusal.final) == (code, True)
    if code == "arithmetic":
        assert "'step'" in refusal.reason


def test_a_run_that_ends_admits_nobody() -> None:
    run = Scenario()
    run.operator(RunStopped(reason="enough"))
    run.join("a")
    assert answers(run) == [("site.refused", "finished")]


def test_a_version_mismatch_is_counted_and_a_second_one_in_a_row_departs() -> None:
    run = Scenario()
    run.arrive("a")
    assert "holds another" in run.apply("a", 0, name("wrong"))
    assert departed(run) == []
    assert run.apply("a", 0) == ""
    run.apply("a", 0, name("wrong"))
    assert run.view.live()[0].mismatches == 1
    run.apply("a", 7)  # a version nobody committed
    assert run.view.live()[0].mismatches == 2
    assert departed(run) == [("a", "unfit")]


def test_r10_a_joiner_gets_blocks_after_it_reports_a_usable_version() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=1)
    run.admit("b", run.join("b"))
    assert {event.site for event in policy.grants(run.view)} == {"a"}
    run.apply("b", 0, name("wrong"))
    assert {event.site for event in policy.grants(run.view)} == {"a"}
    run.apply("b", 0)
    assert {event.site for event in policy.grants(run.view)} == {"a", "b"}


def test_a_site_that_says_it_leaves_departs_with_its_own_reason() -> None:
    run = Scenario()
    run.arrive("a")
    run.says("a", SiteDeparting(code="walltime", reason="its job ends in 60 s"))
    (event,) = policy.departures(run.view)
    assert (event.code, event.reason) == ("walltime", "its job ends in 60 s")
