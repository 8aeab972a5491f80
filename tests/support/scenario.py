"""Histories for tests of rules: real events, appended by real pens to a real log, really folded.

A scenario reads like the rule it proves. Appending answers as the fold does: '' where the event
holds, otherwise why it is void.
"""

from __future__ import annotations

from typing import Any

from eventlog.events import (
    COORDINATOR,
    BlockCompleted,
    BlockStarted,
    CoordinatorElected,
    CoordinatorTick,
    Cut,
    DeltaBlock,
    DeltaPublished,
    DeltaRefused,
    LeaseGranted,
    Quota,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    SiteAdmitted,
    SiteDeparted,
    Token,
    VersionApplied,
)
from eventlog.writer import Stamp
from tests.support.history import RUN, History, config, created, finish, joining, name


class Scenario(History):
    """A run under way, coordinated by the test."""

    def __init__(
        self,
        target: dict[str, int] | None = None,
        num_sequences: int = 22,
        *,
        elect: bool = True,
        **sections: Any,
    ) -> None:
        super().__init__(target, num_sequences, **sections)
        if elect:
            self.elect()

    # -- the usual --------------------------------------------------------------------------------

    def elect(self, holder: str = "one") -> int:
        """A claim of the term; the term."""
        claim = CoordinatorElected(holder=holder, reason="nobody coordinates")
        assert self.append(COORDINATOR, [claim], Stamp()) == [""]
        return self.last[0]

    def tick(self, num: int = 1) -> None:
        for _ in range(num):
            assert self.decide(CoordinatorTick(tick=self.view.run().term_ticks + 1)) == ""

    def join(self, site: str, **changes: Any) -> Token:
        """A request to be admitted; its token."""
        assert self.append(f"site.{site}", [joining(**changes)], Stamp()) == [""]
        return self.last

    def admit(self, site: str, join: Token) -> str:
        void = self.decide(SiteAdmitted(site=site, join=join, reason="it fits"))
        if not void:
            self.sites[site] = self.last
        return void

    def arrive(self, *sites: str) -> None:
        """Each site joins, is admitted, and holds the newest version."""
        for site in sites:
            assert self.admit(site, self.join(site)) == ""
            assert self.apply(site, self.view.run().version) == ""

    def apply(self, site: str, version: int, digest: str = "") -> str:
        """The site says that it holds a version, with the right digest or another."""
        return self.says(
            site,
            VersionApplied(
                version=version,
                parameters_digest=digest or name(f"version {version}"),
                source="update",
            ),
        )

    def depart(self, site: str, code: str = "lost") -> str:
        fields = {"incarnation": self.sites[site], "site": site, "code": code, "reason": "gone"}
        return self.decide(SiteDeparted.model_validate(fields))

    def open(self, **quotas: int) -> str:
        """Open the next round on the newest version with these quotas."""
        run, rounds = self.view.run(), self.config.rounds
        timing = self.view.timing()
        return self.decide(
            RoundOpened(
                round=run.round + 1,
                base_version=run.version,
                quotas=tuple(
                    Quota(incarnation=self.sites[site], blocks=num) for site, num in quotas.items()
                ),
                quorum=rounds.quorum,
                grace_ticks=timing.ticks(rounds.grace_s),
                deadline_ticks=timing.ticks(rounds.deadline_s),
                reason="the test says so",
            )
        )

    def grant(self, site: str, *blocks: int, epoch: int = 0) -> str:
        return self.decide(self.granting(site, *blocks, epoch=epoch))

    def granting(self, site: str, *blocks: int, epoch: int = 0) -> LeaseGranted:
        return LeaseGranted(
            incarnation=self.sites[site], site=site, epoch=epoch, blocks=blocks, reason="a test"
        )

    def lease(self, epoch: int, block: int) -> Token:
        """The lease under which a block was last granted, an unknown one where none was."""
        row = self.projection.db.execute(
            "SELECT l.seq, l.id FROM blocks b JOIN leases l ON l.seq = b.lease "
            "WHERE b.epoch = ? AND b.block = ?",
            (epoch, block),
        ).fetchone()
        return row or (1, "no lease")

    def starting(self, block: int, epoch: int = 0) -> BlockStarted:
        return BlockStarted(epoch=epoch, block=block, lease=self.lease(epoch, block))

    def completing(self, block: int, epoch: int = 0, loss: float = 2.0) -> BlockCompleted:
        lease = self.lease(epoch, block)
        return BlockCompleted(epoch=epoch, block=block, lease=lease, loss=loss, seconds=1.0)

    def train(self, site: str, *blocks: int, epoch: int = 0) -> None:
        """The site starts and completes blocks that it holds."""
        for block in blocks:
            assert self.says(site, self.starting(block, epoch)) == ""
            assert self.says(site, self.completing(block, epoch)) == ""

    def delivery(self, *blocks: int, epoch: int = 0, **changes: Any) -> DeltaPublished:
        """A delta of these blocks, right in everything but `changes`."""
        index = self.view.index()
        fields: dict[str, Any] = {
            "base_version": self.view.run().version,
            "blocks": [
                DeltaBlock(
                    epoch=epoch,
                    block=block,
                    lease=self.lease(epoch, block),
                    tokens=index.tokens(block),
                )
                for block in blocks
            ],
            "blob": name(f"delta {blocks} after {self.last}"),
            "num_bytes": 40,
            "codec": "fp32",
            "norm": 1.0,
            "max_abs": 0.5,
        }
        return DeltaPublished.model_validate({**fields, **changes})

    def deliver(self, site: str, *blocks: int, epoch: int = 0, **changes: Any) -> Token:
        """The site publishes blocks that it has trained; the delta's token."""
        assert self.says(site, self.delivery(*blocks, epoch=epoch, **changes)) == ""
        return self.last

    def work(self, site: str, *blocks: int, epoch: int = 0) -> Token:
        """Grant, train and deliver blocks; the delta's token."""
        assert self.grant(site, *blocks, epoch=epoch) == ""
        self.train(site, *blocks, epoch=epoch)
        return self.deliver(site, *blocks, epoch=epoch)

    def closing(self, **changes: Any) -> RoundClosed:
        """The cut of all undecided deltas, right in everything but `changes`."""
        deltas, run = self.view.deltas("undecided"), self.view.run()
        total = sum(delta.tokens for delta in deltas)
        fields: dict[str, Any] = {
            "round": run.round,
            "base_version": run.version,
            "deltas": [
                Cut(
                    delta=delta.token,
                    site=delta.site,
                    tokens=delta.tokens,
                    weight=delta.tokens / total,
                )
                for delta in deltas
            ],
            "tokens": total,
            "reason": "a test",
        }
        return RoundClosed.model_validate({**fields, **changes})

    def committing(self, **changes: Any) -> RoundCommitted:
        """The commit of the logged cut, right in everything but `changes`."""
        round_, version = self.view.round(), self.view.run().version + 1
        assert round_ is not None
        fields: dict[str, Any] = {
            "round": round_.round,
            "cut": round_.cut or (1, "no cut"),
            "version": version,
            "update_blob": name(f"update {version}"),
            "update_bytes": 40,
            "update_codec": "fp32",
            "parameters_digest": name(f"version {version}"),
            "momentum_digest": name(f"momentum {version}"),
            "residual_digest": name(f"residual {version}"),
            "tokens": round_.tokens or 1,
            "through": self.projection.position.sequence,
            "log_digest": self.projection.position.log_digest,
            "reason": "a test",
        }
        return RoundCommitted.model_validate({**fields, **changes})

    def commit(self) -> None:
        """Cut the open round with all undecided deltas, and commit it."""
        assert self.decide(self.closing()) == ""
        assert self.decide(self.committing()) == ""

    def refuse(self, delta: Token, site: str, code: str = "nonfinite") -> str:
        values = code in ("nonfinite", "form", "outlier")
        fields = {"delta": delta, "site": site, "code": code, "values": values, "reason": "bad"}
        return self.decide(DeltaRefused.model_validate(fields))

    def state(self, block: int, epoch: int = 0) -> str:
        """The state of a block."""
        row = self.projection.db.execute(
            "SELECT state FROM blocks WHERE epoch = ? AND block = ?", (epoch, block)
        ).fetchone()
        return row[0] if row else "available"

    def states(self, *blocks: int, epoch: int = 0) -> list[str]:
        return [self.state(block, epoch) for block in blocks]


__all__ = ["RUN", "Scenario", "config", "created", "finish", "joining", "name"]
