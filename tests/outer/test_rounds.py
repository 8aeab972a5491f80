"""Decisions about rounds: quotas, opening, closing, refusing, keeping, finishing (R2, R12, R13)."""

from __future__ import annotations

import pytest

from eventlog.events import (
    DrainRequested,
    Event,
    Heartbeat,
    RunPaused,
)
from leases import policy
from outer.facts import Facts, Verdict
from outer.rounds import closing, decide, expected, opening, quotas, refusals
from tests.support.scenario import Scenario, name

DIGESTS = (name("p"), name("m"), name("r"))
GRACE, DEADLINE = 3, 20  # ticks of the scenario's 6 s and 40 s


def good(run: Scenario) -> Facts:
    """Every delta's blob is found good."""
    deltas = run.view.deltas("undecided", "cut")
    return Facts({delta.token[0]: Verdict() for delta in deltas}, digests=DIGESTS)


def close_reason(run: Scenario) -> str:
    """Why the round closes now; '' where it stays open."""
    decided = closing(run.view, good(run))
    return decided[0].reason if decided else ""


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def beat(run: Scenario, site: str, rate: float = 8.0) -> None:
    event = Heartbeat(phase="training", step=1, tokens=1, tokens_per_s=rate)
    assert run.says(site, event) == ""


@pytest.mark.parametrize(
    ("rates", "expected_quotas"),
    [
        ((8.0, 4.0, 2.0), [12, 6, 3]),
        ((8.0, 0.0, 8.0), [12, 12, 12]),
        ((0.0, 0.0, 0.0), [12, 12, 12]),
        ((1e6, 1.0, 1e-9), [12, 1, 1]),
        ((1.7e308, 1.7e308, 5e-324), [12, 12, 1]),
    ],
)
def test_quotas_are_in_proportion_to_rates_and_at_least_one(
    rates: tuple[float, ...], expected_quotas: list[int]
) -> None:
    run = Scenario()
    run.arrive("a", "b", "c")
    for site, rate in zip("abc", rates, strict=True):
        beat(run, site, rate)
    assert quotas(run.view.live(), 12) == expected_quotas


def test_the_shortest_block_there_is_still_gives_quotas() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.grant("a", 0)
    run.says("a", run.starting(0))
    assert run.says("a", run.completing(0).model_copy(update={"seconds": 5e-324})) == ""
    beat(run, "b")
    (event,) = opening(run.view)
    assert [quota.blocks for quota in event.quotas] == [3, 1]


def test_a_round_opens_for_the_usable_and_undrained_sites() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.admit("c", run.join("c"))
    run.operator(DrainRequested(site="b", reason="maintenance"))
    (event,) = opening(run.view)
    assert [quota.incarnation for quota in event.quotas] == [run.sites["a"]]
    assert (event.round, event.base_version) == (1, 0)
    assert (event.quorum, event.grace_ticks, event.deadline_ticks) == (2, GRACE, DEADLINE)


def test_no_round_opens_without_a_site_or_a_delta() -> None:
    run = Scenario()
    assert opening(run.view) == []
    run.arrive("a")
    run.grant("a", 0)
    run.depart("a")
    assert opening(run.view) == []


def test_a_round_opens_for_undecided_deltas_with_nobody_live_and_merges_them() -> None:
    run = Scenario()
    run.arrive("a")
    run.work("a", 0)
    run.depart("a")
    (event,) = opening(run.view)
    assert event.quotas == () and "nobody" in event.reason
    assert run.decide(event) == ""
    assert close_reason(run) == "the one expected delta is in"


def test_r13_a_round_closes_when_all_expected_deltas_are_in() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=2, b=1)
    run.grant("a", 0, 1)
    run.work("b", 2)
    assert [one.site for one in expected(run.view, run.view.round())] == ["a"]
    assert close_reason(run) == ""
    run.train("a", 0, 1)
    run.deliver("a", 0, 1)
    assert close_reason(run) == "all 2 expected deltas are in"


def test_r13_who_departs_is_no_longer_expected() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=2, b=1)
    run.grant("a", 0, 1)
    run.work("b", 2)
    run.depart("a")
    assert close_reason(run) == "the one expected delta is in"


def test_r13_a_round_closes_at_quorum_and_grace() -> None:
    run = Scenario()
    run.arrive("a", "b", "c")
    run.open(a=1, b=1, c=1)
    run.grant("c", 5)
    run.work("a", 0)
    run.tick(GRACE + 1)
    assert close_reason(run) == ""
    run.work("b", 1)
    run.tick(GRACE - 1)
    assert close_reason(run) == ""
    run.tick()
    assert close_reason(run) == "quorum of 2 and grace are over; without c"


def test_r13_the_quorum_is_at_most_the_number_of_live_sites() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.grant("b", 5)
    run.work("a", 0)
    run.tick(GRACE)
    assert close_reason(run) == ""
    run.depart("a", "walltime")
    assert close_reason(run) == "quorum of 2 and grace are over; without b"


def test_r13_a_round_closes_at_its_deadline_with_one_delta_and_stays_open_without() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.grant("b", 5)
    run.grant("a", 0)
    run.train("a", 0)
    for _ in range(DEADLINE):
        run.tick()
        beat(run, "b")
    assert close_reason(run) == ""
    run.deliver("a", 0)
    assert close_reason(run) == f"the deadline of {DEADLINE} ticks is over; without b"


def test_r13_an_undecided_late_delta_counts_as_its_incarnations() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.grant("b", 1)
    run.train("b", 1)
    run.work("a", 0)
    run.commit()
    late = run.deliver("b", 1, base_version=0)
    run.open(a=1, b=1)
    run.apply("a", 1)
    assert [one.site for one in expected(run.view, run.view.round())] == ["a"]
    run.work("a", 2)
    (cut,) = closing(run.view, good(run))
    assert late in [part.delta for part in cut.deltas]


def test_no_cut_before_every_delta_is_checked() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=1)
    run.work("a", 0)
    assert closing(run.view, Facts()) == []
    assert kinds(closing(run.view, good(run))) == ["round.closed"]


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_delta_is_refused_once_it_is_too_old(staleness: int) -> None:
    run = Scenario({"epochs": 9}, outer={"max_staleness": staleness})
    run.arrive("a", "b")
    run.grant("b", 5)
    run.train("b", 5)
    late = run.deliver("b", 5)
    for version in range(staleness + 1):
        assert refusals(run.view, Facts()) == []
        run.open(a=1)
        mine = run.work("a", version)
        one = next(cut for cut in run.closing().deltas if cut.delta == mine)
        alone = one.model_copy(update={"weight": 1.0})
        assert run.decide(run.closing(deltas=[alone], tokens=one.tokens)) == ""
        assert run.decide(run.committing()) == ""
    (event,) = refusals(run.view, Facts())
    assert (event.delta, event.code, event.values) == (late, "stale", False)
    run.decide(event)
    assert run.state(5) == "available"


def test_p8_a_delta_with_bad_values_is_refused_and_the_rest_reclaimed() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=3, b=1)
    bad = run.work("a", 0)
    run.grant("a", 1, 2)
    run.says("a", run.starting(1))
    run.work("b", 3)
    facts = good(run)
    facts.verdicts[bad[0]] = Verdict("nonfinite", "NaN in weight")
    decided = decide(run.view, facts)
    assert kinds(decided) == ["delta.refused", "lease.reclaimed"]
    assert run.decide(*decided) == ""
    assert run.states(0, 1, 2, 3) == ["available", "available", "available", "delivered"]


def test_r2_freed_blocks_are_granted_only_after_the_freeing_append() -> None:
    run = Scenario({"epochs": 1}, num_sequences=8)
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.grant("a", 0)
    run.says("a", run.starting(0))
    run.tick(4)
    beat(run, "b")
    run.tick(4)
    freeing = decide(run.view, Facts())
    assert kinds(freeing) == ["site.departed"]
    run.decide(*freeing)
    again = decide(run.view, Facts())
    assert kinds(again) == ["lease.granted"]
    assert again[0].site == "b"


def test_p2_who_joins_a_round_that_everybody_left_gets_a_full_quota() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=3)
    run.grant("a", 0, 1, 2)
    run.depart("a")
    assert policy.grants(run.view) == []
    run.arrive("a")
    (grant,) = policy.grants(run.view)
    assert (len(grant.blocks), grant.quota) == (run.config.blocks_per_round, 3)
    assert run.decide(grant) == ""
    assert [one.site for one in expected(run.view, run.view.round())] == ["a"]


def test_p2_who_joins_a_round_without_members_gets_blocks() -> None:
    run = Scenario()
    run.arrive("a")
    bad = run.work("a", 0)
    run.depart("a")
    run.decide(*opening(run.view))
    run.refuse(bad, "a")
    run.arrive("b")
    assert [event.site for event in policy.grants(run.view)] == ["b"]


def test_who_joins_in_mid_round_gets_the_share_that_is_left() -> None:
    run = Scenario({"epochs": 9}, num_sequences=80, inner={"steps": 8, "batch_sequences": 2})
    run.arrive("a")
    run.open(a=4)
    run.grant("a", 0, 1, 2, 3)
    run.train("a", 0, 1)
    run.arrive("b")
    (grant,) = policy.grants(run.view)
    assert (grant.site, len(grant.blocks), grant.quota) == ("b", 2, 2)


def test_r2_paused_the_open_round_commits_if_it_has_a_delta_and_none_follows() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=1, b=2)
    run.grant("b", 1, 2)
    run.says("b", run.starting(1))
    run.work("a", 0)
    run.operator(RunPaused(reason="a break"))
    assert close_reason(run) == ""  # b has started a block, and will deliver it
    run.says("b", run.completing(1))
    run.deliver("b", 1)
    assert close_reason(run) == "all 2 expected deltas are in"
    run.commit()
    assert decide(run.view, good(run)) == []
