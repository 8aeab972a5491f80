"""Whatever a run goes through, an honest log passes: the two counts of the audit agree on it."""

from __future__ import annotations

import random

import pytest

from eventlog.events import CoordinatorTick, LeaseReclaimed, LeaseStolen, SiteDeparting
from leases.view import View
from tests.leases.stories import audited, closing_epoch
from tests.support.scenario import Scenario

SITES = ("alpha", "beta", "gamma")
NUM_STEPS = 180


class Walk:
    """A coordinator that decides only what holds, sites that live, die and talk nonsense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rounds = {"quorum": 1, "grace_s": 0, "deadline_s": 40}  # any cut with a delta is in time
        self.scenario = Scenario(target={"epochs": 50}, num_sequences=38, rounds=rounds)
        assert self.scenario.view.index().num_blocks == 10
        self.view: View = self.scenario.view
        self.num_void = 0

    def step(self) -> None:
        """One thing happens, if it can just now."""
        moves = (self.arrive, self.depart, self.steal, self.reclaim, self.refuse, self.noise)
        usual = (self.grant, self.train, self.train, self.deliver, self.merge)
        site = self.random.choice(SITES)
        self.random.choice((*moves, *usual * 6))(site)

    def live(self, site: str) -> bool:
        return self.view.live_at(site) is not None

    def held(self, site: str, *states: str) -> list[tuple[int, int]]:
        one = self.view.live_at(site)
        blocks = self.view.held(one.token[0]) if one else []
        return [(block.epoch, block.block) for block in blocks if block.state in states]

    def arrive(self, site: str) -> None:
        if not self.live(site):
            self.scenario.arrive(site)

    def depart(self, site: str) -> None:
        if self.live(site):
            leaving = SiteDeparting(code="walltime", reason="its job ends")
            assert self.scenario.says(site, leaving) == ""
            assert self.scenario.depart(site, "walltime") == ""

    def grant(self, site: str) -> None:
        if not self.live(site):
            return self.arrive(site)
        if self.view.round() is None:
            assert self.scenario.open(**{site: 2}) == ""
        epoch = self.epoch()
        free = [
            block
            for block in range(self.view.index().num_blocks)
            if self.scenario.state(block, epoch) == "available"
        ]
        if free:
            some = self.random.sample(free, min(len(free), self.random.randint(1, 3)))
            assert self.scenario.grant(site, *some, epoch=epoch) == ""

    def epoch(self) -> int:
        return next(
            (row["epoch"] for row in self.view.epochs() if row["closed_seq"] is None),
            len(self.view.epochs()),
        )

    def train(self, site: str) -> None:
        for epoch, block in self.held(site, "leased", "training")[:2]:
            if self.scenario.state(block, epoch) == "leased":
                assert self.scenario.says(site, self.scenario.starting(block, epoch)) == ""
            if self.random.random() < 0.8:
                assert self.scenario.says(site, self.scenario.completing(block, epoch)) == ""

    def deliver(self, site: str) -> None:
        one, trained = self.view.live_at(site), self.held(site, "trained")
        if one is None or not trained or self.view.has_undecided(one.token[0]):
            return
        epoch = trained[0][0]
        blocks = [block for e, block in trained if e == epoch]
        self.scenario.deliver(site, *blocks, epoch=epoch)

    def merge(self, _: str) -> None:
        round_ = self.view.round()
        if round_ is not None and self.view.deltas("undecided"):
            self.scenario.commit()
            for one in self.view.live():
                assert self.scenario.apply(one.site, self.view.run().version) == ""
        for row in self.view.epochs():
            if row["closed_seq"] is None and row["merged"] == row["blocks"]:
                closing = closing_epoch().model_copy(
                    update={
                        "epoch": row["epoch"],
                        "blocks": row["blocks"],
                        "tokens": row["merged_tokens"],
                    }
                )
                assert self.scenario.decide(closing) == ""

    def steal(self, site: str) -> None:
        unstarted = self.held(site, "leased")
        if unstarted:
            epoch, block = self.random.choice(unstarted)
            token = self.scenario.sites[site]
            event = LeaseStolen(
                incarnation=token, site=site, epoch=epoch, blocks=(block,), reason="idle"
            )
            assert self.scenario.decide(event) == ""

    def reclaim(self, site: str) -> None:
        unstarted = self.held(site, "leased")
        whole = self.held(site, "leased", "training", "trained")
        blocks = self.random.choice([unstarted, whole])
        if blocks:
            token = self.scenario.sites[site]
            event = LeaseReclaimed(incarnation=token, site=site, blocks=blocks, reason="slow")
            assert self.scenario.decide(event) == ""

    def refuse(self, _: str) -> None:
        deltas = self.view.deltas("undecided", "void")
        if deltas:
            delta = self.random.choice(deltas)
            code = "void" if delta.state == "void" else "nonfinite"
            assert self.scenario.refuse(delta.token, delta.site, code) == ""

    def noise(self, site: str) -> None:
        """Zombies, wrong tokens, stale terms: recorded, without effect."""
        if site not in self.scenario.sites:
            return
        block, epoch = self.random.randrange(10), max(0, self.epoch() - 1)
        event = self.random.choice(
            [
                self.scenario.starting(block, epoch),
                self.scenario.completing(block, epoch),
                self.scenario.delivery(block, (block + 1) % 10, epoch=epoch),
            ]
        )
        if self.random.random() < 0.3:
            old = self.view.run().term
            self.scenario.elect()
            tick = CoordinatorTick(tick=1)
            self.num_void += self.scenario.decide(tick, term=old) != ""
        self.num_void += self.scenario.says(site, event) != ""


@pytest.mark.parametrize("seed", range(8))
def test_an_honest_log_passes_whatever_happened_to_the_run(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(NUM_STEPS):
        walk.step()
    found = audited(walk.scenario)
    assert found.violations == []
    assert len(found.void) == walk.num_void
    merged = sum(row["merged"] for row in walk.view.epochs())
    assert sum(one.merged for one in found.epochs) == merged > 0
