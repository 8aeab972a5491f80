"""Whole runs by the real decisions: several epochs, short last blocks, late and last deltas."""

from __future__ import annotations

import pytest

from eventlog.events import EpochClosed, LeaseStolen, RunFinished, SiteDeparting, SnapshotSaved
from outer.facts import Facts, Verdict
from outer.rounds import decide, refusals
from tests.leases.stories import audited
from tests.support.scenario import Scenario, name


class Play:
    """Sites that train at so many blocks a turn, under the coordinator's own decisions."""

    def __init__(self, run: Scenario, **speeds: int) -> None:
        self.run, self.speeds = run, speeds
        self.events: list = []
        run.arrive(*speeds)

    def decide(self) -> None:
        """Let the coordinator decide until nothing is left."""
        run = self.run
        while True:
            cut = run.view.round()
            merged = run.committing() if cut is not None and cut.state == "closed" else None
            saved = SnapshotSaved(
                version=max(1, run.view.run().version), blob=name("s"), num_bytes=1, reason="due"
            )
            deltas = run.view.deltas("undecided", "cut")
            verdicts = {one.token[0]: Verdict() for one in deltas}
            version = run.view.run().version
            digests = tuple(
                name(f"{what} {version}") for what in ("version", "momentum", "residual")
            )
            events = decide(run.view, Facts(verdicts, merged, (saved,), digests))
            if not events:
                return
            assert run.decide(*events) == ""
            self.events += events

    def turn(self) -> None:
        """Every site takes the newest version, trains a few blocks, delivers what it can."""
        run = self.run
        for site, speed in self.speeds.items():
            one = run.view.live_at(site)
            if one.version != run.view.run().version:
                run.apply(site, run.view.run().version)
            held = [b for b in run.view.held(one.token[0]) if b.state == "leased"][:speed]
            for block in held:
                run.train(site, block.block, epoch=block.epoch)
        self.decide()  # a steal, perhaps, before anything is delivered
        for site in self.speeds:
            self.deliver(site)
        run.tick()
        self.decide()

    def deliver(self, site: str) -> None:
        """One delta of everything, where all that is held is trained."""
        run, seq = self.run, self.run.sites[site][0]
        held = run.view.held(seq)
        if not held or any(b.state != "trained" for b in held) or run.view.has_undecided(seq):
            return
        parts = [
            part for block in held for part in run.delivery(block.block, epoch=block.epoch).blocks
        ]
        version = run.view.live_at(site).version
        event = run.delivery(held[0].block, epoch=held[0].epoch, base_version=version)
        assert run.says(site, event.model_copy(update={"blocks": tuple(parts)})) == ""

    def to_the_end(self, max_turns: int = 200) -> None:
        self.decide()
        for _ in range(max_turns):
            if self.run.view.run().state == "finished":
                return
            self.turn()
        raise AssertionError(f"not finished after {max_turns} turns")

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("speeds", [{"a": 1}, {"a": 1, "b": 1}, {"a": 3, "b": 1, "c": 1}])
def test_epochs_close_one_after_the_other_each_block_merged_once_short_ones_too(
    epochs: int, speeds: dict[str, int]
) -> None:
    play = Play(Scenario({"epochs": epochs}), **speeds)
    play.to_the_end()
    closed = play.of(EpochClosed)
    assert [(one.epoch, one.blocks, one.tokens) for one in closed] == [
        (epoch, 6, 22 * 8)
        for epoch in range(epochs)  # 22 sequences of 8 tokens
    ]
    (end,) = play.of(RunFinished)
    assert (end.outcome, end.tokens, end.num_returned) == ("target", epochs * 176, 0)
    found = audited(play.run)
    assert found.violations == []
    assert [(one.merged, one.lost, one.duplicated) for one in found.epochs] == [(6, 0, 0)] * epochs


def test_the_tail_of_a_run_is_shared_by_who_idles() -> None:
    run = Scenario({"epochs": 1}, num_sequences=80, inner={"steps": 40, "batch_sequences": 2})
    play = Play(run, fast=4, slow=1)
    play.decide()
    assert [one.reason for one in play.of(LeaseStolen)] == []
    play.to_the_end()
    assert play.of(LeaseStolen), "nobody took over the slow site's blocks"
    assert all(one.site == "slow" for one in play.of(LeaseStolen))
    assert audited(run).violations == []


def test_a_last_delta_beside_an_undecided_one_is_cut_with_it_in_order_of_blocks() -> None:
    run = Scenario({"epochs": 2})
    run.arrive("a", "b")
    run.open(a=3, b=1)
    first = run.work("a", 2)
    run.grant("a", 1)
    run.train("a", 1)
    last = run.deliver("a", 1, last=True)
    other = run.work("b", 0)
    assert run.says("a", SiteDeparting(code="walltime", reason="its job ends")) == ""
    run.depart("a", "walltime")
    cut = run.closing()
    assert [one.delta for one in cut.deltas] == [last, first, other]
    run.commit()
    assert run.view.run().merged_tokens == 3 * 32
    assert run.states(0, 1, 2) == ["merged"] * 3
    assert audited(run).violations == []


@pytest.mark.parametrize("staleness", [2, 3])
def test_a_delta_as_late_as_the_staleness_is_merged_with_its_full_weight(staleness: int) -> None:
    outer, rounds = {"max_staleness": staleness}, {"quorum": 1, "grace_s": 0}
    run = Scenario({"epochs": 9}, outer=outer, rounds=rounds)
    run.arrive("a", "b")
    for version in range(staleness):
        if version == 0:
            run.open(a=1, b=1)
            run.grant("b", 5)  # the short one: 16 tokens
            run.train("b", 5)
        else:
            run.open(a=1)
        run.work("a", version)
        run.commit()
        run.apply("a", version + 1)
    late = run.deliver("b", 5, base_version=0)
    run.open(a=1)
    run.work("a", staleness)
    assert refusals(run.view, Facts()) == []
    cut = {one.delta: (one.tokens, one.weight) for one in run.closing().deltas}
    assert cut[late] == (16, 16 / 48)
    run.commit()
    assert run.state(5) == "merged" and audited(run).violations == []


def test_a_site_that_is_not_staler_than_allowed_stays_in_the_rounds() -> None:
    run = Scenario({"epochs": 9}, outer={"max_staleness": 2})
    run.arrive("a", "b")
    for version in range(3):
        (opened,) = decide(run.view, Facts())
        quotas = {quota.incarnation for quota in opened.quotas}
        assert (run.sites["b"] in quotas) == (version <= 2)
        run.decide(opened)
        run.work("a", version)
        run.commit()
        run.apply("a", version + 1)
    (opened,) = decide(run.view, Facts())
    assert [quota.incarnation for quota in opened.quotas] == [run.sites["a"]]
