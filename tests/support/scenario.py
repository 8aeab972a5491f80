"""Histories for tests of rules: real events, appended by real pens to a real log, really folded.

A scenario reads like the rule it proves. Appending answers as the fold does: '' where the event
holds, otherwise why it is void.
"""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from eventlog.codec import Envelope, encode, pack, unpack
from eventlog.config import RunConfig
from eventlog.events import (
    COORDINATOR,
    OPERATOR,
    BlockCompleted,
    BlockStarted,
    CoordinatorElected,
    CoordinatorTick,
    Cut,
    DataShape,
    DeltaBlock,
    DeltaPublished,
    DeltaRefused,
    Event,
    LeaseGranted,
    Quota,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    SiteAdmitted,
    SiteDeparted,
    SiteJoined,
    Token,
    VersionApplied,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View

T = TypeVar("T")
RUN = "tests"
MANIFEST = "11" * 32
ARITHMETIC = {"decode": "aa" * 32, "merge": "bb" * 32, "encode": "cc" * 32, "step": "dd" * 32}


def name(text: str) -> str:
    """A digest that stands for some content."""
    return hashlib.sha256(text.encode()).hexdigest()


def config(target: dict[str, int] | None = None, **sections: Any) -> RunConfig:
    """A small run: blocks of 4 sequences, H of 3 blocks, a tick every 2 s, K = 8."""
    return RunConfig.model_validate(
        {
            "name": RUN,
            "seed": 7,
            "lease_s": 16.0,
            "target": target or {"epochs": 2},
            "data": {"block_sequences": 4},
            "model": {"model_type": "qwen3"},
            "inner": {"steps": 6, "batch_sequences": 2},
            "rounds": {"quorum": 2, "grace_s": 6.0, "deadline_s": 40.0},
            **sections,
        }
    )


def created(run: RunConfig, num_sequences: int = 22, **changes: Any) -> RunCreated:
    """The run's first event: 22 sequences of 8 tokens give 6 blocks, the last one of 16 tokens."""
    content = run.model_dump(mode="json", exclude_none=True)
    fields: dict[str, Any] = {
        "config": content,
        "config_digest": hashlib.sha256(pack(content)).hexdigest(),
        "data": DataShape(
            manifest_digest=MANIFEST,
            num_sequences=num_sequences,
            sequence_tokens=8,
            block_sequences=run.data.block_sequences,
        ),
        "parameters_blob": name("initial blob"),
        "parameters_digest": name("version 0"),
        "num_parameters": 10,
        "arithmetic": ARITHMETIC,
        "arithmetic_digest": name("arithmetic"),
    }
    return RunCreated.model_validate({**fields, **changes})


def joining(**changes: Any) -> SiteJoined:
    """A site at the door that fits the run."""
    fields = {"hardware": {}, "software": {}, "manifest_digest": MANIFEST, "arithmetic": ARITHMETIC}
    return SiteJoined.model_validate({**fields, **changes})


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a log in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise AssertionError("a log in memory waits for nothing")


class Scenario:
    """A run under way: created, and coordinated by the test. `sites` holds the token of each
    site's newest incarnation; `why` what the fold said of each sequence."""

    def __init__(
        self,
        target: dict[str, int] | None = None,
        num_sequences: int = 22,
        *,
        elect: bool = True,
        **sections: Any,
    ) -> None:
        self.config = config(target, **sections)
        self.log = MemoryLog(RUN, lambda: 0)
        self.projection = Projection(":memory:", [LeaseTable()], RUN)
        self.view = View(self.projection.db)
        self.sites: dict[str, Token] = {}
        self.why: dict[int, str] = {}
        self.last: Token = (0, "")
        assert self.operator(created(self.config, num_sequences)) == ""
        if elect:
            self.elect()

    # -- appending --------------------------------------------------------------------------------

    def append(self, subject: str, events: Sequence[Event], stamp: Stamp) -> list[str]:
        """What the fold says of each event of one atomic append, by the subject's own pen."""
        pen = Writer(self.log, subject, chained=subject == COORDINATOR, clock=lambda: 0.0)
        pen.set(*self.view.pen(subject))
        finish(pen.append(events, stamp))
        return self.fold()

    def raw(self, subject: str, payload: bytes) -> str:
        """What the fold says of bytes that somebody put on a subject."""
        last = finish(self.log.last(subject))
        finish(self.log.append(subject, [payload], last.sequence if last else 0))
        return self.fold()[0]

    def envelope(self, subject: str, event: Event, **changes: Any) -> Envelope:
        """The envelope that the subject's pen would write, or one that differs in `changes`."""
        n, previous, last = self.view.pen(subject)
        fields: dict[str, Any] = {
            "id": f"{subject}-{last}-{n + 1}",
            "type": event.type,
            "version": event.schema_version,
            "run": RUN,
            "source": subject,
            "n": n + 1,
            "at": 0.0,
        }
        if subject == COORDINATOR:
            fields |= {"term": self.view.run().term, "previous": previous or None}
        elif subject.startswith("site."):
            fields["incarnation"] = self.sites.get(subject.partition(".")[2])
        return Envelope(**{**fields, **changes})

    def forged(self, subject: str, event: Event, **changes: Any) -> str:
        """The event under an envelope that differs from the right one in `changes`."""
        envelope = self.envelope(subject, event, **changes)
        wire = unpack(encode(event, envelope))
        return self.raw(subject, pack({**wire, "type": envelope.type, "v": envelope.version}))

    def fold(self) -> list[str]:
        """Fold what is new."""
        records = finish(self.log.read(self.projection.position.sequence))
        folded = self.projection.apply(records)
        for entry, voids in folded:
            self.why[entry.record.sequence] = voids[0]
            self.last = entry.token
        return [voids[0] for _, voids in folded]

    def operator(self, event: Event) -> str:
        return self.append(OPERATOR, [event], Stamp())[0]

    def decide(self, *events: Event, term: int | None = None) -> str:
        """Decisions of the coordinator in one batch; what is void of them."""
        said = self.append(COORDINATOR, events, Stamp(term=term or self.view.run().term))
        return "; ".join(filter(None, said))

    def says(self, site: str, event: Event, incarnation: Token | None = None) -> str:
        """An event of the site's newest incarnation, or of another."""
        return self.append(
            f"site.{site}", [event], Stamp(incarnation=incarnation or self.sites.get(site))
        )[0]

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
