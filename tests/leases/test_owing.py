"""R10 and R14: who hangs is departed, who is busy is not; who delivers bad values rests."""

from __future__ import annotations

from eventlog.config import Limits, Timing
from eventlog.events import Heartbeat, SiteDeparted
from leases import policy
from leases.owing import progress_bound_s
from leases.quarantine import quarantines
from outer.facts import Facts
from outer.rounds import decide
from tests.support.scenario import Scenario

LEASE = 8  # ticks; the coordinator gives the hub a lease more
LIMITS = {"compile_s": 40.0, "transfer_s": 60.0, "backoff_s": 20.0}


def story(**limits: float) -> Scenario:
    """Two sites in a round; `a` has begun a block of its two, and has made a step."""
    run = Scenario({"epochs": 2}, limits={**LIMITS, **limits})
    run.arrive("a", "b")
    run.open(a=2, b=1)
    run.grant("a", 0, 1)
    run.says("a", run.starting(0))
    beat(run, "a", step=1)
    return run


def beat(run: Scenario, site: str, step: int, phase: str = "training", **changes: object) -> None:
    fields = {"phase": phase, "step": step, "tokens": step, "tokens_per_s": 8.0}
    assert run.says(site, Heartbeat.model_validate({**fields, **changes})) == ""


def ticks(run: Scenario, num: int, step: int = 1, phase: str = "training") -> list[str]:
    """So many ticks in which hubs speak and trainers do not; who is departed at the end."""
    for _ in range(num):
        run.tick()
        beat(run, "a", step, phase)
        beat(run, "b", 0, "waiting")
    return [event.site for event in policy.departures(run.view)]


def test_r10_a_site_without_a_step_in_a_block_departs_after_its_bound() -> None:
    run = story()
    assert ticks(run, 2 * LEASE) == []
    assert ticks(run, 1) == ["a"]
    (event,) = policy.departures(run.view)
    assert event.code == "lost" and "without a step in a block it trains" in event.reason
    assert run.decide(event) == ""
    assert run.states(0, 1) == ["available", "available"]


def test_r10_the_bound_is_kept_to_the_tick_though_the_site_says_nothing_around_it() -> None:
    """Nothing is written then that would have the site looked at: only its own timer does. Ten
    steps of 3 s are 15 ticks, and its hub has a lease of 8 more."""
    run = story()
    beat(run, "a", 2, step_s=3.0)
    for tick in range(1, 15 + LEASE + 1):
        run.tick()
        beat(run, "b", 0, "waiting")
        if tick <= 15 + LEASE - 3:
            beat(run, "a", 2)
        assert policy.departures(run.view) == [], tick
    run.tick()
    (event,) = policy.departures(run.view)
    assert (event.site, event.code) == ("a", "lost") and "without a step" in event.reason


def test_r10_a_step_is_progress() -> None:
    run = story()
    for step in range(2, 6):
        assert ticks(run, LEASE, step) == []


def test_r10_ten_slow_steps_are_waited_for_up_to_the_cap() -> None:
    run = story()
    beat(run, "a", 2, step_s=3.0)  # ten of them are 30 s, 15 ticks
    assert ticks(run, 15 + LEASE, 2) == []
    assert ticks(run, 1, 2) == ["a"]
    liar = story()
    beat(liar, "a", 2, step_s=1e300)  # no more than what is allowed for compiling
    assert ticks(liar, 20 + LEASE, 2) == []
    assert ticks(liar, 1, 2) == ["a"]


def test_r10_compiling_before_the_first_step_has_a_bound_of_its_own() -> None:
    run = Scenario({"epochs": 2}, limits=LIMITS)
    run.arrive("a", "b")
    run.open(a=2, b=1)
    run.grant("a", 0, 1)
    run.says("a", run.starting(0))
    assert ticks(run, 20 + LEASE, 0) == []
    assert ticks(run, 1, 0) == ["a"]


def test_r10_fetching_a_version_with_a_block_begun_has_the_bound_of_transfers() -> None:
    run = story()
    assert ticks(run, 30 + LEASE, phase="applying") == []
    assert ticks(run, 1, phase="applying") == ["a"]


def test_r10_who_never_gets_a_version_departs() -> None:
    run = Scenario({"epochs": 2}, limits=LIMITS)
    run.arrive("b")
    run.admit("a", run.join("a"))
    assert ticks(run, 30 + LEASE, 0, "starting") == []
    assert ticks(run, 1, 0, "starting") == ["a"]


def test_r10_waiting_for_a_decision_is_unbounded() -> None:
    run = story()
    run.says("a", run.completing(0))
    run.train("a", 1)
    run.deliver("a", 0, 1)
    assert ticks(run, 20 * LEASE, 2, "waiting") == []
    assert run.view.deltas("undecided")


def test_r10_unstarted_blocks_owe_nothing() -> None:
    run = Scenario({"epochs": 2}, limits=LIMITS)
    run.arrive("a", "b")
    run.open(a=2, b=1)
    run.grant("a", 0, 1)
    assert ticks(run, 20 * LEASE, 0, "waiting") == []


def test_r10_delivery_is_owed_within_the_lease_after_the_deadline() -> None:
    run = story()
    run.says("a", run.completing(0))
    deadline = 20
    assert ticks(run, deadline + 2 * LEASE, 1, "waiting") == []
    assert ticks(run, 1, 1, "waiting") == ["a"]
    (event,) = policy.departures(run.view)
    assert "past the deadline with trained blocks undelivered" in event.reason


def test_r10_delivery_is_owed_from_the_last_completion_where_that_is_later() -> None:
    run = story()
    for step in range(2, 40):  # a long block, in which steps are made
        assert ticks(run, 1, step) == []
    run.says("a", run.completing(0))
    assert ticks(run, 2 * LEASE, 39, "waiting") == []
    assert ticks(run, 1, 39, "waiting") == ["a"]


def test_r10_storing_a_delta_takes_what_the_run_allows_for_transfers() -> None:
    run = story()
    run.says("a", run.completing(0))
    ticks(run, 20, 1, "publishing")
    assert ticks(run, 30 + LEASE, 1, "publishing") == []
    assert ticks(run, 1, 1, "publishing") == ["a"]


def test_r10_only_ticks_of_the_current_term_count() -> None:
    run = story()
    ticks(run, 2 * LEASE)
    run.elect("two")
    assert ticks(run, 2 * LEASE) == []
    assert ticks(run, 1) == ["a"]


def test_r10_bounds_are_the_lease_ten_steps_or_what_compiling_may_take() -> None:
    timing, limits = Timing.of(16.0), Limits(compile_s=100.0)
    bounds = [progress_bound_s(limits, timing, True, step) for step in (0.0, 1.6, 2.0, 50.0)]
    assert bounds == [16.0, 16.0, 20.0, 100.0]
    assert progress_bound_s(limits, timing, False, 0.0) == 100.0
    assert progress_bound_s(Limits(compile_s=1.0), timing, False, 0.0) == 16.0


# -- R14 ------------------------------------------------------------------------------------------


def refuse(run: Scenario, site: str, block: int) -> None:
    """A delta of one block, refused for its values."""
    assert run.refuse(run.work(site, block), site) == ""


def test_r14_n_refusals_in_a_row_depart_a_site_as_unfit_with_a_back_off() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a", "b")
    run.open(a=1, b=1)
    for block in (0, 1):
        refuse(run, "a", block)
        assert policy.departures(run.view) == []
    refuse(run, "a", 2)
    (event,) = policy.departures(run.view)
    assert (event.site, event.code, event.backoff_ticks) == ("a", "unfit", 10)
    assert "3 deltas in a row" in event.reason


def test_r14_a_merge_in_between_begins_the_count_anew() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a")
    run.open(a=1)
    refuse(run, "a", 0)
    refuse(run, "a", 1)
    run.work("a", 2)
    run.commit()
    run.apply("a", 1)
    run.open(a=1)
    refuse(run, "a", 3)
    refuse(run, "a", 4)
    assert policy.departures(run.view) == []


def test_r14_a_join_within_the_back_off_is_refused_for_now_and_ticks_end_it() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a")
    run.open(a=1)
    for block in range(3):
        refuse(run, "a", block)
    run.decide(*policy.departures(run.view))
    assert run.view.backs_off() and not run.view.run().live
    run.join("a")
    (answer,) = policy.joins(run.view)
    assert (answer.type, answer.code, answer.final) == ("site.refused", "backoff", False)
    assert "in 20 s" in answer.reason
    run.decide(answer)
    run.join("b")
    assert [one.type for one in policy.joins(run.view)] == ["site.admitted"]  # others may
    run.tick(9)
    run.join("a")
    assert "backoff" in [getattr(one, "code", "") for one in policy.joins(run.view)]
    run.tick()
    assert not run.view.backs_off()
    assert [one.type for one in policy.joins(run.view)] == ["site.admitted"] * 2


def test_r14_a_departure_for_another_reason_has_no_back_off() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a")
    run.tick(LEASE)
    (event,) = policy.departures(run.view)
    assert isinstance(event, SiteDeparted) and event.backoff_ticks == 0
    run.decide(event)
    run.join("a")
    assert [one.type for one in policy.joins(run.view)] == ["site.admitted"]


def test_r14_a_block_in_k_refused_deltas_of_two_sites_is_quarantined() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a", "b")
    run.open(a=1, b=1)
    refuse(run, "a", 5)
    refuse(run, "b", 5)
    assert quarantines(run.view) == []  # k is 3
    refuse(run, "a", 5)
    (event,) = decide(run.view, Facts())
    assert (event.type, event.epoch, event.block) == ("block.quarantined", 0, 5)
    assert "3 deltas" in event.reason and "a, b" in event.reason
    assert run.decide(event) == ""
    assert run.state(5) == "quarantined" and quarantines(run.view) == []


def test_r14_one_sites_refusals_quarantine_nothing_while_another_can_try() -> None:
    run = Scenario({"epochs": 9}, limits={**LIMITS, "refusals": 9})
    run.arrive("a", "b")
    run.open(a=1, b=1)
    for _ in range(4):
        refuse(run, "a", 5)
    assert quarantines(run.view) == []
    run.depart("b")
    assert [event.block for event in quarantines(run.view)] == [5]
    run.depart("a")
    assert quarantines(run.view) == []  # nobody is there: nothing is given up


def test_r14_refusals_for_other_reasons_suspect_nobody() -> None:
    run = Scenario({"epochs": 9}, limits=LIMITS)
    run.arrive("a")
    run.open(a=1)
    for _ in range(4):
        assert run.refuse(run.work("a", 5), "a", code="blob") == ""
    assert quarantines(run.view) == [] and policy.departures(run.view) == []


def test_r10_blocks_that_wait_behind_an_undecided_delta_owe_nothing() -> None:
    run = story()
    run.says("a", run.completing(0))
    run.deliver("a", 0)
    run.train("a", 1)  # it goes on while the first is undecided
    assert run.states(0, 1) == ["delivered", "trained"]
    assert ticks(run, 20 + 20 * LEASE, 1, "waiting") == []
