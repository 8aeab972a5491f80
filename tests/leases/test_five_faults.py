"""Five faults that the closest data-lease service gets wrong, on our lease table.

What DLRover 0.6.1 does in each was found by running it: docs/results/dlrover-five-faults.py. Here
the real fold judges and the real policy decides; the test plays the sites.
"""

from __future__ import annotations

from eventlog.events import (
    BlockCompleted,
    CoordinatorTick,
    DeltaBlock,
    Heartbeat,
    LeaseGranted,
    SiteDeparted,
    SiteDeparting,
    Token,
)
from eventlog.projector import Projection
from leases.schema import table_digest
from leases.table import LeaseTable
from leases.view import View
from outer.facts import Facts, Verdict
from outer.rounds import decide
from tests.leases.stories import audited, records
from tests.support.scenario import RUN, Scenario, name

DIGESTS = (name("p"), name("m"), name("r"))


class Coordinated(Scenario):
    """One epoch of six blocks, three a round; every decision is the policy's."""

    def __init__(self) -> None:
        super().__init__(target={"epochs": 1}, rounds={"quorum": 1, "grace_s": 2.0})

    def settle(self) -> list[object]:
        """Whatever the policy decides now, with every blob found good; what it was."""
        decided: list[object] = []
        while True:
            view = self.view
            verdicts = {one.token[0]: Verdict() for one in view.deltas("undecided", "cut")}
            events = decide(view, Facts(verdicts, digests=DIGESTS))
            if not events and (round_ := view.round()) is not None and round_.state == "closed":
                events = [self.committing()]
            if not events:
                return decided
            assert self.decide(*events) == ""
            decided += events

    def come(self, *sites: str) -> None:
        """The sites are admitted and hold the newest version."""
        for site in sites:
            self.join(site)
        self.settle()
        for site in sites:
            live = self.view.live_at(site)
            assert live is not None
            self.sites[site] = live.token
            self.hold(site)
        self.settle()

    def hold(self, *sites: str) -> None:
        for site in sites:
            assert self.apply(site, self.view.run().version) == ""

    def pass_ticks(self, num: int, *speaking: str, step: int = 0) -> list[object]:
        """So many ticks, in which these sites go on speaking of a step; what was decided."""
        decided: list[object] = []
        for _ in range(num):
            assert self.decide(CoordinatorTick(tick=self.view.run().term_ticks + 1)) == ""
            for site in speaking:
                beat = Heartbeat(phase="training", step=step, tokens=0, tokens_per_s=0.0)
                self.says(site, beat)
            decided += self.settle()
        return decided

    def blocks_of(self, site: str) -> list[int]:
        """What its living incarnation holds."""
        return [one.block for one in self.view.held(self.sites[site][0])]

    def round_of(self, site: str) -> None:
        """It trains and delivers what it holds, and takes the version that comes of it."""
        blocks = self.blocks_of(site)
        self.train(site, *blocks)
        self.deliver(site, *blocks)
        self.settle()
        self.hold(site)
        self.settle()

    def finish_with(self, site: str) -> None:
        """It does all that is left to be done."""
        while self.blocks_of(site):
            self.round_of(site)


def lost_holder() -> tuple[Coordinated, int, Token, Token]:
    """beta began a block, fell silent, was departed; alpha holds the block now. With the zombie's
    incarnation and its lease."""
    run = Coordinated()
    run.come("alpha", "beta")
    zombie, block = run.sites["beta"], run.blocks_of("beta")[0]
    lease = run.lease(0, block)
    assert run.says("beta", run.starting(block)) == ""
    decided = run.pass_ticks(8, "alpha")
    (gone,) = [one for one in decided if isinstance(one, SiteDeparted)]
    assert (gone.site, gone.code) == ("beta", "lost")
    while block not in run.blocks_of("alpha"):
        run.round_of("alpha")
    assert run.says("alpha", run.starting(block)) == ""
    return run, block, zombie, lease


def test_zombie_success_counts_for_nothing_and_its_successor_is_not_disturbed() -> None:
    """R3, R4, P4: the report of who lost its lease is void; the block is merged once, by alpha."""
    run, block, zombie, lease = lost_holder()
    success = BlockCompleted(epoch=0, block=block, lease=lease, loss=1.0, seconds=1.0)
    assert "does not live" in run.says("beta", success, zombie)
    delta = run.delivery(block).model_copy(
        update={"blocks": (DeltaBlock(epoch=0, block=block, lease=lease, tokens=32),)}
    )
    assert "does not live" in run.says("beta", delta, zombie)
    assert run.state(block) == "training"
    assert run.says("alpha", run.completing(block)) == ""
    rest = [one for one in run.blocks_of("alpha") if one != block]
    run.train("alpha", *rest)
    run.deliver("alpha", block, *rest)
    run.settle()
    assert run.state(block) == "merged"
    run.hold("alpha")
    run.settle()
    run.finish_with("alpha")
    found = audited(run)
    assert found.ok and found.epochs[0].merged == 6 and found.epochs[0].duplicated == 0
    assert {"block.completed", "delta.published"} <= {one.type for one in found.void}
    assert {one.site: one.merged for one in found.shares}["beta"] == 0


def test_zombie_failure_frees_nothing_of_who_trains_the_block_now() -> None:
    """R2, R4: a site's event takes no lease from anybody; no third site gets the block."""
    run, block, zombie, _ = lost_holder()
    failure = SiteDeparting(code="trainer", reason="its trainer failed")
    assert "does not live" in run.says("beta", failure, zombie)
    run.come("gamma")
    decided = run.pass_ticks(3, "alpha", "gamma", step=1)
    granted = [one for one in decided if isinstance(one, LeaseGranted)]
    assert block not in [one for event in granted for one in event.blocks]
    assert block not in run.blocks_of("gamma")
    assert (run.state(block), block in run.blocks_of("alpha")) == ("training", True)


def test_a_block_outlives_any_number_of_deaths_and_the_end_waits_for_it() -> None:
    """P1, R15: deaths are no refusals (R14): the block is granted again, and again, and merged."""
    run = Coordinated()
    num_deaths, held = 7, set()
    for _ in range(num_deaths):
        run.come("beta")
        block = run.blocks_of("beta")[0]
        assert run.says("beta", run.starting(block)) == ""
        held.add(block)
        run.pass_ticks(8)
        assert run.view.live_at("beta") is None
        assert run.state(block) == "available"
        assert run.view.run().state == "running"
    assert held == {block}, "each death was of the same block's holder"
    run.come("alpha")
    run.finish_with("alpha")
    (grants,) = run.projection.db.execute(
        "SELECT grants FROM blocks WHERE epoch = 0 AND block = ?", (block,)
    ).fetchone()
    found = audited(run)
    assert found.ok and grants == num_deaths + 1
    (epoch,) = found.epochs
    assert (epoch.merged, epoch.lost, epoch.quarantined, epoch.closed) == (6, 0, 0, True)


def test_who_hangs_under_a_living_hub_loses_its_blocks_to_who_does_not() -> None:
    """R10: heartbeats go on, steps do not: departed within the lease and K ticks more."""
    run = Coordinated()
    run.come("alpha", "beta")
    block = run.blocks_of("beta")[0]
    assert run.says("beta", run.starting(block)) == ""
    run.pass_ticks(1, "alpha", "beta", step=5)
    decided: list[object] = []
    for tick in range(1, 40):
        decided += run.pass_ticks(1, "beta", step=5)
        run.says("alpha", Heartbeat(phase="waiting", step=tick, tokens=0, tokens_per_s=0.0))
        if any(isinstance(one, SiteDeparted) for one in decided):
            break
    (gone,) = [one for one in decided if isinstance(one, SiteDeparted)]
    assert (gone.site, gone.code) == ("beta", "lost") and "without a step" in gone.reason
    timing = run.view.timing()
    assert tick <= timing.ticks(timing.lease_s) + timing.BASE_K + 1
    assert run.state(block) != "training"
    run.finish_with("alpha")
    assert run.state(block) == "merged" and audited(run).ok


def test_a_restarted_coordinator_knows_what_is_merged_and_nothing_is_trained_again() -> None:
    """P3, R5: the table is a fold of the log: the same rows; only what is open is handed out."""
    run = Coordinated()
    run.come("alpha")
    run.round_of("alpha")
    merged = {block for block in range(6) if run.state(block) == "merged"}
    assert len(merged) == 3
    before = table_digest(run.projection.db)
    run.projection.close()
    run.projection = Projection(":memory:", [LeaseTable()], RUN)  # a new process
    run.view = View(run.projection.db)
    run.projection.apply(records(run))
    assert table_digest(run.projection.db) == before
    run.elect("another")
    at = run.last[0]
    run.settle()
    run.finish_with("alpha")
    again = [
        block
        for entry, _ in Projection(":memory:", [LeaseTable()], RUN).apply(records(run))
        if isinstance(entry.event, LeaseGranted) and entry.record.sequence > at
        for block in entry.event.blocks
    ]
    assert not merged & set(again)
    found = audited(run)
    assert found.ok and found.epochs[0].merged == 6 and found.blocks_granted == 6
