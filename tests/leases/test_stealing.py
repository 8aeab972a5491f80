"""R2: who idles takes unstarted blocks of who is slow or silent, where that shortens the round."""

from __future__ import annotations

import pytest

from eventlog.events import DrainRequested, Heartbeat, LeaseStolen, RunPaused
from leases import policy
from leases.stealing import steals
from outer.facts import Facts, Verdict
from outer.rounds import decide, expected, quotas
from tests.leases.stories import audited
from tests.support.scenario import Scenario

BLOCK_TOKENS = 32
TICK_S = 2.0  # of the scenario's lease of 16 s


def beat(run: Scenario, site: str, block_s: float, **changes: object) -> None:
    """The site's trainer shows a step, at so many seconds a block."""
    step = run.view.incarnation(run.sites[site][0]).step + 1
    fields = {
        "phase": "training",
        "step": step,
        "tokens": 1,
        "tokens_per_s": BLOCK_TOKENS / block_s,
    }
    assert run.says(site, Heartbeat.model_validate({**fields, **changes})) == ""


def story(num_blocks: int = 8) -> Scenario:
    """`fast` has delivered its part and idles; `slow` holds so many blocks from 8 on, one begun."""
    run = Scenario({"epochs": 1}, num_sequences=80, inner={"steps": 16, "batch_sequences": 2})
    run.arrive("fast", "slow")
    assert run.open(fast=2, slow=num_blocks) == ""
    assert run.grant("slow", *range(8, 8 + num_blocks)) == ""
    assert run.says("slow", run.starting(8)) == ""
    run.work("fast", 0, 1)
    return run


def taken(run: Scenario) -> list[tuple[int, ...]]:
    return [event.blocks for event in steals(run.view)]


def settle(run: Scenario) -> list[str]:
    """Let the coordinator decide until nothing is left; the kinds of its decisions."""
    kinds = []
    for _ in range(50):
        facts = Facts({one.token[0]: Verdict() for one in run.view.deltas("undecided", "cut")})
        events = decide(run.view, facts)
        if not events:
            return kinds
        kinds += [event.type for event in events]
        assert run.decide(*events) == ""
    raise AssertionError("the coordinator never ends")


def test_r2_the_idle_site_takes_what_it_trains_before_its_slow_holder() -> None:
    run = story()
    beat(run, "fast", 10.0)
    beat(run, "slow", 30.0)
    # of 8 blocks at 30 s a block: 60 s for two that stay, 60 s for six at 10 s
    (event,) = steals(run.view)
    assert event.blocks == (10, 11, 12, 13, 14, 15) and event.site == "slow"
    assert event.to == run.sites["fast"]
    assert "slow needs 30 s a block" in event.reason and "fast idles" in event.reason


def test_r2_stolen_blocks_go_to_the_thief_and_not_back() -> None:
    run = story()
    beat(run, "fast", 10.0)
    beat(run, "slow", 30.0)
    assert settle(run) == ["lease.stolen", "lease.granted"]
    quotas_ = run.view.quotas(1)
    assert quotas_ == {run.sites["fast"][0]: 8, run.sites["slow"][0]: 2}
    assert [one.block for one in run.view.held(run.sites["fast"][0])] == [10, 11, 12, 13, 14, 15]
    assert [one.block for one in run.view.held(run.sites["slow"][0])] == [8, 9]
    run.says("slow", run.completing(8))
    run.train("slow", 9)
    assert expected(run.view, run.view.round())[0].site == "slow"
    run.deliver("slow", 8, 9)
    assert settle(run) == ["round.closed"]  # the round waits for two blocks of `slow`, not eight
    found = audited(run)
    assert found.ok and found.blocks_stolen == 6 and found.blocks_reclaimed == 0


def test_r2_freed_by_a_steal_is_granted_only_in_a_later_append() -> None:
    run = story()
    beat(run, "fast", 10.0)
    beat(run, "slow", 30.0)
    events = decide(run.view, Facts())
    assert {event.type for event in events} == {"lease.stolen"}
    run.decide(*events)
    assert {event.type for event in decide(run.view, Facts())} == {"lease.granted"}


@pytest.mark.parametrize(
    ("fast_s", "slow_s", "num", "stolen"),
    [
        (10.0, 10.0, 2, [(9,)]),  # 20 s with both, 10 s each alone
        (10.0, 5.0, 2, []),  # the holder ends both in the 10 s of one here
        (10.0, 6.0, 2, []),  # 10 s here and the detour's tick, 12 s there
        (10.0, 6.1, 2, [(9,)]),
        (30.0, 10.0, 4, [(11,)]),  # 40 s there; one here takes 30 s and a tick
        (10.0, 100.0, 1, []),  # nothing is unstarted
    ],
)
def test_r2_no_block_is_stolen_that_would_not_be_trained_sooner(
    fast_s: float, slow_s: float, num: int, stolen: list
) -> None:
    run = story(num)
    beat(run, "fast", fast_s)
    beat(run, "slow", slow_s)
    assert taken(run) == stolen


def test_r2_who_was_stolen_from_takes_nothing_in_that_round() -> None:
    run = story()
    beat(run, "fast", 10.0)
    beat(run, "slow", 30.0)
    settle(run)
    run.says("slow", run.completing(8))
    run.train("slow", 9)
    run.deliver("slow", 8, 9)
    beat(run, "fast", 500.0)  # the estimate was wrong: now the other one idles
    beat(run, "slow", 1.0)
    assert taken(run) == []
    settle(run)  # the cut, without its commit
    run.decide(run.committing())
    for site in ("fast", "slow"):
        run.apply(site, 1)
    settle(run)
    mine = [block.block for block in run.view.held(run.sites["slow"][0])]
    run.train("slow", *mine)
    run.deliver("slow", *mine)
    (event,) = steals(run.view)  # in the next round it may, and takes from `fast`
    assert (event.site, event.to) == ("fast", run.sites["slow"])


def test_r2_a_silent_holder_loses_what_it_has_not_begun() -> None:
    run = story(4)
    beat(run, "slow", 1.0)
    for _ in range(5):
        run.tick()
        beat(run, "fast", 50.0)
    (event,) = steals(run.view)
    assert event.blocks == (9, 10, 11)
    assert "slow is silent for 5 ticks" in event.reason


def test_r2_a_holder_that_stalls_counts_as_slow_as_it_is_seen_to_be() -> None:
    run = story(3)
    beat(run, "slow", 1.0)
    beat(run, "fast", 5.0)
    assert taken(run) == []
    for tick in range(6):  # no step for 12 s: surely none between a tick and a heartbeat
        assert taken(run) == ([] if tick < 3 else [(10,)] if tick < 5 else [(9, 10)])
        run.tick()
        beat(run, "fast", 5.0)
        beat(run, "slow", 1.0, step=run.view.live_at("slow").step)
    assert taken(run) == [(9, 10)]  # 27 s there; 10 s here


def test_r2_only_who_can_train_steals() -> None:
    run = story()
    beat(run, "fast", 10.0)
    beat(run, "slow", 30.0)
    assert len(taken(run)) == 1
    run.operator(DrainRequested(site="fast", reason="maintenance"))
    assert taken(run) == []


def test_r2_nothing_is_stolen_in_a_paused_run_or_for_a_job_that_ends() -> None:
    run = story()
    beat(run, "slow", 30.0)
    beat(run, "fast", 10.0, walltime_left_s=16.0 + 25.0)  # the margin, and two blocks and a half
    assert taken(run) == [(14, 15)]
    run.operator(RunPaused(reason="a break"))
    assert taken(run) == []


def test_r2_a_site_without_quota_that_steals_is_expected_in_the_round() -> None:
    run = story()
    beat(run, "fast", 1000.0)
    beat(run, "slow", 30.0)
    run.arrive("late")
    assert run.view.quotas(1).get(run.sites["late"][0]) is None
    stolen = LeaseStolen(
        incarnation=run.sites["slow"],
        site="slow",
        epoch=0,
        blocks=(15,),
        to=run.sites["late"],
        reason="idle",
    )
    assert run.decide(stolen) == ""
    assert run.view.quotas(1)[run.sites["late"][0]] == 1
    assert "late" in [one.site for one in expected(run.view, run.view.round())]


def test_r2_a_steal_for_who_has_departed_moves_no_quota_to_it() -> None:
    run = story()
    beat(run, "slow", 30.0)
    gone = run.sites["fast"]
    run.depart("fast")
    event = LeaseStolen(
        incarnation=run.sites["slow"], site="slow", epoch=0, blocks=(15,), to=gone, reason="idle"
    )
    assert run.decide(event) == ""
    assert run.view.quotas(1) == {gone[0]: 2, run.sites["slow"][0]: 7}


def test_a_short_rest_of_blocks_is_dealt_by_rate_so_that_all_end_together() -> None:
    run = Scenario({"epochs": 1}, num_sequences=24, inner={"steps": 24, "batch_sequences": 2})
    run.arrive("a", "b", "c")
    for site, block_s in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        beat(run, site, block_s)
    wants = quotas(run.view.live(), 12)
    assert wants == [12, 6, 3]
    run.open(a=12, b=6, c=3)
    dealt = {event.site: len(event.blocks) for event in policy.grants(run.view)}
    assert dealt == {"a": 4, "b": 2}  # six are left: 4 s, 4 s; c would need 4 s for one more


def test_a_restarted_site_is_as_fast_as_it_was_until_it_is_measured() -> None:
    run = Scenario({"epochs": 9})
    run.arrive("a", "b")
    beat(run, "a", 1.0)
    beat(run, "b", 4.0)
    run.depart("b")
    run.arrive("b")
    assert quotas(run.view.live(), 12) == [12, 3]
    beat(run, "b", 4.0, tokens_per_s=0.0)  # a new trainer that has not made a step
    assert quotas(run.view.live(), 12) == [12, 3]
    beat(run, "b", 2.0)
    assert quotas(run.view.live(), 12) == [12, 6]
    run.depart("b")
    assert run.admit("b", run.join("b", hardware={"device": "another"})) == ""
    assert quotas(run.view.live(), 12) == [12, 12]  # on another machine it is not known


def test_quotas_follow_rates_that_change_from_round_to_round() -> None:
    run = Scenario({"epochs": 9}, num_sequences=400)
    run.arrive("a", "b")
    for block_s, expected_quotas in ((1.0, [12, 12]), (3.0, [12, 4]), (0.5, [6, 12])):
        beat(run, "a", 1.0)
        beat(run, "b", block_s)
        assert quotas(run.view.live(), 12) == expected_quotas
        longest = [q * s for q, s in zip(expected_quotas, (1.0, block_s), strict=True)]
        assert max(longest) - min(longest) <= max(1.0, block_s)
