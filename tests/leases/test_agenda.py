"""What is decided by asking few is what is decided by asking all, in every history.

The agenda is kept by what changes; `tests.support.naive` says the same rules over all sites, and
reads a copy of the table, as a coordinator that has just recovered would.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventlog.events import CoordinatorTick, Event, Heartbeat, LeaseStolen, SnapshotSaved
from leases import agenda, supply
from leases.ranks import Ranks, Timers
from leases.view import View
from ops.bench import desk, fleet
from outer.facts import Facts, Verdict
from outer.rounds import decide, expected
from tests.support import naive
from tests.support.histories import ANY, DIGESTS, HONEST, Player, histories
from tests.support.scenario import Scenario, name

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
BAD = (Verdict("nonfinite", "NaN"), Verdict("blob", "missing"), Verdict("outlier", "huge"))


def copied(view: View) -> View:
    """A view of a copy of the table, with nothing in memory."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    view.db.backup(copy)
    return View(copy)


def facts_of(view: View, seed: int) -> Facts:
    """Verdicts on some of the open deltas, a few of them bad."""
    chance = random.Random(seed)
    found = {}
    for delta in view.deltas("undecided", "cut"):
        if chance.random() < 0.8:
            found[delta.token[0]] = chance.choice(BAD) if chance.random() < 0.2 else Verdict()
    return Facts(found, digests=DIGESTS if chance.random() < 0.8 else None)


def check(view: View, facts: Facts) -> list[Event]:
    """Whether all three decide the same: the agenda that was kept, one made anew, none at all."""
    plain = copied(view)
    decided = decide(view, facts)
    assert decided == decide(copied(view), facts) == naive.decide(plain, facts)
    round_ = view.round()
    if round_ is not None:
        owing = naive.expected(plain, round_)
        assert expected(view, round_) == owing
    for limit in (0, 1, 3, 1000):
        assert supply.num_grantable(view, limit) == len(supply.grantable(plain, limit))
    return decided


def is_alike(view: View, facts: Facts) -> bool:
    check(view, facts)
    return True


@SETTINGS
@given(histories(HONEST, 40), st.integers(0, 1000))
def test_a_kept_agenda_decides_as_a_new_one_and_as_none_in_honest_histories(
    steps: list, seed: int
) -> None:
    assert all(play(steps, seed))


@SETTINGS
@given(histories(ANY, 40), st.integers(0, 1000))
def test_a_kept_agenda_decides_as_a_new_one_and_as_none_in_any_history(
    steps: list, seed: int
) -> None:
    assert all(play(steps, seed))


def play(steps: list, seed: int) -> Iterator[bool]:
    """Whether all decide alike, after each step."""
    run = Scenario({"epochs": 2}, num_sequences=22, rounds={"quorum": 2, "grace_s": 2.0})
    player = Player(run)
    for number, step in enumerate(steps):
        player.play([step])
        yield is_alike(run.view, facts_of(run.view, seed + number))


@pytest.mark.parametrize("num_sites", [1, 3, 12])
def test_a_steady_run_is_decided_alike(num_sites: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[str] = set()

    def checked(view: View, facts: Facts) -> list[Event]:
        decided = check(view, Facts(facts.verdicts, facts.merged, digests=facts.digests))
        kinds.update(event.type for event in decided)
        return decided

    monkeypatch.setattr(desk, "decide", checked)
    monkeypatch.setattr(fleet, "LEAVES", 0.1)
    monkeypatch.setattr(fleet, "DIES", 0.03)
    fleet.Fleet(num_sites).run(500)
    usual = {"site.admitted", "round.opened", "lease.granted", "round.closed", "round.committed"}
    assert usual <= kinds
    assert num_sites < 12 or {"site.departed", "lease.stolen"} <= kinds


def test_a_rolled_back_transaction_leaves_the_agenda_as_it_was() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=2, b=1)
    before = check(run.view, Facts())
    db = run.view.db
    db.execute("BEGIN")
    db.execute("UPDATE blocks SET incarnation = 1")
    db.execute("UPDATE incarnations SET state = 'departing'")
    db.execute("ROLLBACK")
    assert check(run.view, Facts()) == before


def test_two_views_of_one_connection_do_not_take_each_others_notes() -> None:
    run = Scenario()
    run.arrive("a", "b")
    other = View(run.view.db)
    run.open(a=2, b=1)
    for view in (other, run.view, other):
        run.tick()
        check(view, Facts())
    run.train("a") if not run.grant("a", 0, 1) else None
    for view in (run.view, other, run.view):
        check(view, Facts())


def test_an_upsert_of_a_steal_is_noted_though_its_thief_was_noted_before() -> None:
    run = Scenario({"epochs": 1}, num_sequences=80)
    run.arrive("fast", "slow")
    run.open(fast=2, slow=4)
    assert run.grant("slow", 8, 9, 10, 11) == ""
    agenda.of(run.view)
    beat = Heartbeat(phase="waiting", step=1, tokens=1, tokens_per_s=1.0)
    assert run.says("fast", beat) == ""
    fields = {"incarnation": run.sites["slow"], "site": "slow", "epoch": 0, "reason": "slow"}
    stolen = LeaseStolen.model_validate({**fields, "blocks": [11], "to": run.sites["fast"]})
    assert run.decide(stolen) == ""
    check(run.view, Facts())


def test_silence_is_found_at_its_tick_and_not_before() -> None:
    run = Scenario()
    run.arrive("a", "b")
    lost = run.view.timing().lost_ticks(2)
    for _ in range(lost):
        assert "site.departed" not in {one.type for one in check(run.view, Facts())}
        assert run.decide(CoordinatorTick(tick=run.view.run().term_ticks + 1)) == ""
        assert run.says("b", Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0)) == ""
    (departed,) = check(run.view, Facts())
    assert departed.site == "a" and departed.code == "lost"


@pytest.mark.parametrize("phase", ["training", "applying"])
def test_a_hung_trainer_is_found_at_its_tick_and_not_before(phase: str) -> None:
    limits = {"compile_s": 60.0, "transfer_s": 90.0}
    run = Scenario({"epochs": 1}, num_sequences=80, limits=limits, rounds={"deadline_s": 9000.0})
    run.arrive("a", "b")
    assert run.open(a=2, b=1) == run.grant("a", 0, 1) == run.grant("b", 2) == ""
    assert run.says("a", run.starting(0)) == ""
    departed = []
    for step in range(120):
        decided = check(run.view, Facts())
        departed = [one for one in decided if one.type == "site.departed"]
        if departed:
            break
        assert not decided or run.decide(*decided) == ""
        run.tick()
        beat = Heartbeat(phase=phase, step=0, tokens=0, tokens_per_s=0)
        assert run.says("a", beat) == ""
        assert run.says("b", beat.model_copy(update={"step": step})) == ""
    assert [one.site for one in departed] == ["a"] and departed[0].code == "lost"


def test_blobs_are_released_when_a_snapshot_or_a_refusal_makes_them_old() -> None:
    run = Scenario({"epochs": 2}, num_sequences=80)
    run.arrive("a")
    released = 0
    for version in range(1, 7):
        assert run.open(a=1) == ""
        run.work("a", version)
        if version in (5, 6):
            delta = run.view.deltas("undecided")[0]
            if version == 6:  # the refusal of a member voids the cut
                assert run.decide(run.closing()) == ""
                check(run.view, Facts())
            assert run.refuse(delta.token, "a") == ""
            if version == 6:
                assert {one.type for one in check(run.view, Facts())} == {"blobs.released"}
            run.work("a", version)
        run.commit()
        saved = {"version": version, "blob": name(f"snapshot {version}"), "num_bytes": 1}
        assert run.decide(SnapshotSaved.model_validate({**saved, "reason": "kept"})) == ""
        decided = check(run.view, Facts())
        kinds = {event.type for event in decided}
        released += "blobs.released" in kinds
        if "blobs.released" in kinds:
            assert run.decide(*decided) == ""
        check(run.view, Facts())
        run.apply("a", version)
    assert released >= 4


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=40))
def test_timers_are_due_at_their_newest_time(steps: list[tuple[int, int]]) -> None:
    timers, times, now = Timers(), {}, 0
    for who, delay in steps:
        if delay > 15:
            now += delay - 15
        else:
            timers.set(who, now + delay)
            times[who] = now + delay
        assert sorted(timers.due(now, lambda _: True)) == sorted(
            one for one, time in times.items() if time <= now
        )


def test_ranks_are_in_order_and_give_back_what_was_put() -> None:
    ranks = Ranks()
    for key, amount in ((("b", 2), 5), (("a", 9), 1), (("c", 1), 7)):
        ranks.add(key, amount)
    assert [key for key, _ in ranks] == [("a", 9), ("b", 2), ("c", 1)]
    assert ranks.discard(("b", 2)) == 5 and ranks.discard(("b", 2)) == 0
    assert list(ranks) == [(("a", 9), 1), (("c", 1), 7)] and len(ranks) == 2
