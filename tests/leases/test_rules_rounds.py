"""Rules of cuts, commits, epochs and the end (R13, R15, P4, P5)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from eventlog.events import EpochClosed, RunFinished, RunStopped
from leases import policy
from leases.progress import target_reached
from tests.support.scenario import Scenario, name


@pytest.fixture
def run() -> Scenario:
    """Sites a and b have delivered two blocks and the short one of epoch 0 (0-5)."""
    scenario = Scenario({"epochs": 2})
    scenario.arrive("b", "a")
    scenario.open(a=3, b=3)
    scenario.work("b", 5)
    scenario.work("a", 0, 1)
    return scenario


def ending(run: Scenario, **changes: object) -> RunFinished:
    state = run.view.run()
    fields = {
        "outcome": "stopped",
        "version": state.version,
        "tokens": state.merged_tokens,
        "undecided": tuple(delta.token for delta in run.view.deltas("undecided")),
        "num_returned": run.view.num_held(),
        "parameters_digest": name("p"),
        "momentum_digest": name("m"),
        "residual_digest": name("r"),
        "reason": "a test",
    }
    return RunFinished.model_validate({**fields, **changes})


def test_p5_weights_are_the_ledgers_tokens_over_their_sum(run: Scenario) -> None:
    cut = run.closing()
    assert [part.site for part in cut.deltas] == ["a", "b"]
    exact = [Fraction(64, 80), Fraction(16, 80)]
    assert [part.weight for part in cut.deltas] == [float(weight) for weight in exact]
    assert run.decide(cut) == ""


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 1.0), (0.8, 0.2 + 1e-12)])
def test_p5_a_cut_with_weights_that_are_not_the_ledgers_is_void(
    run: Scenario, weights: tuple[float, ...]
) -> None:
    cut = run.closing()
    parts = [
        part.model_copy(update={"weight": weight})
        for part, weight in zip(cut.deltas, weights, strict=True)
    ]
    assert "weights are not those of the ledger" in run.decide(run.closing(deltas=parts))
    assert run.view.round().state == "open"


def test_p5_a_cut_with_other_tokens_order_or_members_is_void(run: Scenario) -> None:
    cut = run.closing()
    first, second = cut.deltas
    more = first.model_copy(update={"tokens": 65})
    for change in (
        {"deltas": (more, second), "tokens": 81},
        {"tokens": 81},
        {"deltas": (second, first)},
        {"deltas": (first, first)},
        {"deltas": (first.model_copy(update={"site": "b"}), second)},
        {"deltas": (first.model_copy(update={"delta": (1, "none")}), second)},
        {"round": 2},
        {"base_version": 1},
    ):
        assert run.decide(run.closing(**change)) != "", change
    assert run.view.round().state == "open"
    assert run.states(0, 5) == ["delivered", "delivered"]


def test_p4_a_refused_delta_cannot_be_cut_nor_a_merged_one_again(run: Scenario) -> None:
    cut = run.closing()
    run.refuse(run.view.deltas("undecided")[0].token, "a")
    assert "is refused" in run.decide(cut)
    run.commit()
    run.open(a=1)
    again = cut.model_copy(update={"round": 2, "base_version": 1, "deltas": cut.deltas[1:]})
    assert "is merged" in run.decide(again)


def test_p4_a_delta_older_than_the_staleness_cannot_be_cut() -> None:
    run = Scenario(outer={"max_staleness": 1})
    run.arrive("a", "b")
    run.grant("a", 0)
    run.train("a", 0)
    run.deliver("a", 0)
    for block in (1, 2):
        run.open(b=1)
        mine = run.work("b", block)
        cut = run.closing()
        one = next(part for part in cut.deltas if part.delta == mine)
        alone = run.closing(deltas=[one.model_copy(update={"weight": 1.0})], tokens=one.tokens)
        assert run.decide(alone) == ""
        run.decide(run.committing())
    run.open(b=1)
    assert "too old" in run.decide(run.closing())


def test_a_commit_of_a_foreign_cut_is_void(run: Scenario) -> None:
    assert "has no cut" in run.decide(run.committing())
    run.decide(run.closing())
    for change in ({"cut": (1, "x")}, {"round": 2}, {"version": 2}, {"tokens": 79}):
        assert run.decide(run.committing(**change)) != "", change
    assert run.view.run().version == 0
    commit = run.committing()
    assert run.decide(commit) == ""
    assert "has no cut" in run.decide(commit)
    assert (run.view.run().version, run.view.run().merged_tokens) == (1, 80)


def test_a_refusal_of_a_member_voids_the_cut(run: Scenario) -> None:
    run.decide(run.closing())
    commit = run.committing()
    member = run.view.deltas("cut")[0].token
    assert run.refuse(member, "a") == ""
    assert run.view.round().state == "open"
    assert "has no cut" in run.decide(commit)
    run.commit()
    assert run.states(0, 1, 5) == ["available", "available", "merged"]


def test_a_round_opens_on_the_newest_version_once_the_last_is_over(run: Scenario) -> None:
    assert run.open(a=1) == "round 1 is not over"
    run.commit()
    assert run.open(a=1) == ""
    assert (run.view.round().round, run.view.round().base_version) == (2, 1)


def test_r15_the_next_epoch_begins_when_none_of_the_last_is_available(run: Scenario) -> None:
    assert run.grant("a", 0, epoch=1) == "epoch 0 still has blocks available"
    run.grant("a", 2, 3, 4)
    assert run.grant("a", 0, epoch=2) == "epoch 1 still has blocks available"
    assert run.grant("a", 0, epoch=1) == ""
    run.depart("a")
    assert run.grant("b", 1, epoch=1) == "epoch 0 still has blocks available"


def test_r15_a_delta_may_hold_blocks_of_two_epochs() -> None:
    run = Scenario({"epochs": 2}, num_sequences=8)
    run.arrive("a")
    run.open(a=3)
    run.grant("a", 0, 1)
    run.grant("a", 0, epoch=1)
    run.train("a", 0, 1)
    run.train("a", 0, epoch=1)
    both = run.delivery(1)
    parts = (*both.blocks, *run.delivery(0, epoch=1).blocks)
    assert run.says("a", both.model_copy(update={"blocks": parts})) == ""
    run.commit()
    assert (run.state(1), run.state(0, 1), run.state(0)) == ("merged", "merged", "trained")


def test_r15_an_epoch_closes_when_everything_of_it_is_merged(run: Scenario) -> None:
    early = EpochClosed(epoch=0, blocks=6, tokens=176, num_quarantined=0, reason="early")
    assert "blocks of epoch 0 are open" in run.decide(early)
    run.commit()
    run.open(a=3)
    run.work("a", 2, 3, 4)
    run.commit()
    (closed,) = policy.epochs(run.view)
    assert (closed.blocks, closed.tokens) == (6, 22 * 8)
    assert "says" in run.decide(closed.model_copy(update={"tokens": 192}))
    assert run.decide(closed) == ""
    assert "is closed since" in run.decide(closed)
    assert "never granted" in run.decide(closed.model_copy(update={"epoch": 4}))


@pytest.mark.parametrize("num_sequences", [22, 8, 3])
@pytest.mark.parametrize("target", [{"tokens": 1}, {"tokens": 100}, {"tokens": 300}, {"epochs": 3}])
def test_r15_merged_and_outstanding_never_exceed_the_target_by_a_whole_block(
    target: dict[str, int], num_sequences: int
) -> None:
    run = Scenario(target, num_sequences=num_sequences)
    aim = target.get("tokens") or target["epochs"] * num_sequences * 8
    block_tokens = run.view.index().block_tokens
    run.arrive("a", "b")
    for turn in range(200):
        if target_reached(run.view.db):
            break
        run.open(a=2, b=1)
        for event in policy.grants(run.view):
            assert run.decide(event) == ""
        state = run.view.run()
        assert state.merged_tokens + state.outstanding_tokens < aim + block_tokens
        if turn == 2:
            run.depart("b")
            run.arrive("b")
        for site in ("a", "b"):
            held = run.view.held(run.sites[site][0])
            for block in held:
                run.train(site, block.block, epoch=block.epoch)
            parts = [run.delivery(one.block, epoch=one.epoch) for one in held]
            if parts:
                blocks = tuple(part.blocks[0] for part in parts)
                assert run.says(site, parts[0].model_copy(update={"blocks": blocks})) == ""
        run.commit()
        for site in ("a", "b"):
            run.apply(site, run.view.run().version)
    assert aim <= run.view.run().merged_tokens < aim + block_tokens
    assert policy.grantable(run.view, 10) == []
    if "epochs" in target:
        assert run.view.run().merged_tokens == aim


def test_r15_a_target_in_rounds_is_reached_by_versions() -> None:
    run = Scenario({"rounds": 1})
    run.arrive("a")
    run.open(a=1)
    run.work("a", 0)
    assert not target_reached(run.view.db)
    run.commit()
    assert target_reached(run.view.db)


def test_r15_the_end_returns_everything_and_later_site_events_are_void(run: Scenario) -> None:
    run.commit()
    run.open(a=3)
    run.grant("a", 2, 3, 4)
    run.train("a", 2, 3)
    late = run.deliver("a", 2)
    run.operator(RunStopped(reason="enough"))
    assert run.view.num_held() == 2
    assert run.decide(ending(run)) == ""
    assert run.states(2, 3, 4) == ["delivered", "available", "available"]
    assert run.view.delta(late[0]).state == "undecided"
    assert run.says("a", run.delivery(3)) == "the run has finished"
    assert run.refuse(late, "a") == "the run has finished"
    assert run.view.run().state == "finished"


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"tokens": 1}, {"num_returned": 1}, {"undecided": ()}]
)
def test_r15_an_end_that_tells_otherwise_than_the_ledger_is_void(
    run: Scenario, change: dict[str, object]
) -> None:
    run.operator(RunStopped(reason="enough"))
    assert run.decide(ending(run, **change)) != ""
    assert run.view.run().state == "stopping"


def test_r15_a_run_ends_only_when_asked_or_done_and_after_its_logged_cut(run: Scenario) -> None:
    assert "nobody asked" in run.decide(ending(run))
    assert "target is not reached" in run.decide(ending(run, outcome="target"))
    run.operator(RunStopped(reason="enough"))
    run.decide(run.closing())
    assert "a logged cut" in run.decide(ending(run))
