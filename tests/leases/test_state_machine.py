"""The lease table as a state machine: whatever is said in whatever order, it agrees with a second
ledger that shares no code with it.

Hypothesis chooses what coordinators, sites, zombies and liars say; the fold says what of it stands.
The simulator's referee (`ops.simulate.referee`) knows, without the fold, what may stand: an event
that stands against a rule is a fault, and so is a counter or a row that differs from the ledger's.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from eventlog.codec import decode
from eventlog.events import (
    BlockCompleted,
    BlockStarted,
    DeltaBlock,
    DeltaPublished,
    SiteDeparted,
)
from leases.states import OUTSTANDING
from ops.simulate.referee import Referee
from tests.leases.test_properties import check_counts, check_merged_once
from tests.support.histories import SITES, Player
from tests.support.scenario import Scenario, finish, name

# what only a coordinator's own policy keeps, not the fold: here decisions are made at random
POLICY = frozenset({"R8", "R9", "R10", "R13", "R14", "R20"})
SITE = st.sampled_from(SITES)
SMALL = st.integers(0, 30)


class LeaseTable(RuleBasedStateMachine):
    """A run of three epochs of six blocks, two sites that take part from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[str, str, str]] = []
        self.referee = Referee(lambda *fault: self.faults.append(fault))
        self.run = Scenario({"epochs": 3}, num_sequences=22)
        self.run.arrive("a", "b")
        self.player = Player(self.run)
        self.num_seen = 0

    # -- decisions --------------------------------------------------------------------------------

    @rule(x=SMALL, y=SMALL)
    def decides(self, x: int, y: int) -> None:
        self.player.policy("a", x, y)

    @rule(x=SMALL, y=SMALL)
    def most_of_a_round(self, x: int, y: int) -> None:
        self.player.advance("a", x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def grants(self, site: str, x: int, y: int) -> None:
        self.player.grant(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def steals(self, site: str, x: int, y: int) -> None:
        self.player.steal(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def reclaims(self, site: str, x: int, y: int) -> None:
        self.player.reclaim(site, x, y)

    @rule(site=SITE)
    def departs(self, site: str) -> None:
        self.player.depart(site, 0, 1)

    @rule(x=SMALL, y=SMALL)
    def refuses(self, x: int, y: int) -> None:
        self.player.refuse("a", x, y)

    @rule()
    def cuts(self) -> None:
        self.player.cut("a", 0, 0)

    @rule(x=SMALL, y=SMALL)
    def cuts_wrongly(self, x: int, y: int) -> None:
        if self.run.view.round() is not None:
            self.player.badcut("a", x, y)

    @rule()
    def commits(self) -> None:
        self.player.commit("a", 0, 0)

    @rule(x=SMALL, y=SMALL)
    def commits_wrongly(self, x: int, y: int) -> None:
        self.player.badcommit("a", x, y)

    @rule(y=SMALL)
    def is_succeeded(self, y: int) -> None:
        self.player.elect("a", 0, y)

    @rule(site=SITE, back=st.integers(1, 3))
    def departs_in_another_term(self, site: str, back: int) -> None:
        if site in self.run.sites:
            fields = {"incarnation": self.run.sites[site], "site": site, "code": "lost"}
            event = SiteDeparted.model_validate({**fields, "reason": "a term that is over"})
            self.run.decide(event, term=self.run.view.run().term - back)

    @rule(y=SMALL)
    def ticks(self, y: int) -> None:
        self.player.tick("a", 0, y)

    # -- sites ------------------------------------------------------------------------------------

    @rule(site=SITE, x=SMALL, y=SMALL)
    def joins(self, site: str, x: int, y: int) -> None:
        self.player.join(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def starts(self, site: str, x: int, y: int) -> None:
        self.player.start(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def completes(self, site: str, x: int, y: int) -> None:
        self.player.complete(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def delivers(self, site: str, x: int, y: int) -> None:
        self.player.deliver(site, x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def works(self, site: str, x: int, y: int) -> None:
        self.player.work(site, x, y)

    @rule(site=SITE, y=SMALL)
    def leaves(self, site: str, y: int) -> None:
        self.player.leave(site, 0, y)

    # -- who may not, and what came before --------------------------------------------------------

    @rule(x=SMALL, y=SMALL)
    def speaks_after_its_departure(self, x: int, y: int) -> None:
        self.player.zombie("a", x, y)

    @rule(site=SITE, x=SMALL, y=SMALL)
    def repeats(self, site: str, x: int, y: int) -> None:
        self.player.repeat(site, x, y)

    @rule(site=SITE, x=SMALL, kind=st.integers(0, 2), guess=st.booleans())
    def names_a_lease_that_is_not_its_own(self, site: str, x: int, kind: int, guess: bool) -> None:
        """A block of its own under another lease, or any under its true one, at the right time."""
        states = ("leased", "training", "trained")
        rows = self.run.projection.db.execute(
            "SELECT b.epoch, b.block, l.seq, l.id FROM blocks b JOIN leases l ON l.seq = b.lease "
            "WHERE b.state = ? AND (b.incarnation = ? OR ?) ORDER BY b.epoch, b.block",
            (states[kind], self.run.sites.get(site, (0, ""))[0], not guess),
        ).fetchall()
        if not rows or site not in self.run.sites:
            return
        epoch, block, seq, token = rows[x % len(rows)]
        at = {"epoch": epoch, "block": block, "lease": (seq - 1, token) if guess else (seq, token)}
        tokens = self.run.view.index().tokens(block)
        self.run.says(
            site,
            (
                BlockStarted(**at),
                BlockCompleted(**at, loss=1.0, seconds=1.0),
                DeltaPublished(
                    base_version=self.run.view.run().version,
                    blocks=(DeltaBlock(**at, tokens=tokens + (x % 2) * 8),),
                    blob=name("delta"),
                    num_bytes=1,
                    codec="fp32",
                    norm=1.0,
                    max_abs=1.0,
                ),
            )[kind],
        )

    @rule(x=SMALL, y=SMALL)
    def mangles(self, x: int, y: int) -> None:
        self.player.mangled(SITES[x % 3], x, y)

    @rule(y=SMALL)
    def pauses(self, y: int) -> None:
        self.player.pause("a", 0, y)

    @rule()
    def resumes(self) -> None:
        self.player.resume("a", 0, 0)

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def nothing_stands_that_must_not(self) -> None:
        records = finish(self.run.log.read(self.num_seen, limit=10**6))
        for record in records:
            entry, void = decode(record), self.run.why[record.sequence]
            self.referee.begin_append()
            self.referee.see(entry, void, 0.0)
            if not void and entry.event is not None and entry.event.type == "round.committed":
                self.referee.committed(entry.event)
        self.num_seen += len(records)
        assert not [fault for fault in self.faults if fault[1] not in POLICY]

    @invariant()
    def the_table_is_the_ledger(self) -> None:
        """Conservation of blocks and tokens, and who holds what under which lease."""
        run, ledger = self.run.view.run(), self.referee.ledger
        assert (run.merged_blocks, run.merged_tokens) == (len(ledger.merged), ledger.merged_tokens)
        assert run.outstanding_blocks == len(ledger.held)
        assert run.outstanding_tokens == ledger.outstanding_tokens
        assert (run.version, run.live) == (ledger.version, len(self.referee.lives))
        rows = self.run.projection.db.execute(
            "SELECT epoch, block, state, lease FROM blocks WHERE state IN "
            "('leased', 'training', 'trained', 'delivered')"
        ).fetchall()
        assert {(epoch, block): (state, lease) for epoch, block, state, lease in rows} == {
            key: (OUTSTANDING[one.phase], one.lease[0]) for key, one in ledger.held.items()
        }
        granted = ledger.counts["granted"]
        returned = sum(ledger.counts[why] for why in ("reclaimed", "stolen", "refused"))
        assert granted == len(ledger.merged) + len(ledger.held) + returned

    def teardown(self) -> None:
        check_counts(self.run)
        check_merged_once(self.run)


LeaseTable.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLeaseTable = LeaseTable.TestCase
