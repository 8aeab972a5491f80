"""The coordinator: folds the log, lets `rounds.decide` decide, appends, ticks. One at a time (R5).

It keeps nothing that log and blobs do not hold. Any number may run: one is elected by its claim of
the term, the others stand by and fold. Whoever claims folds through its own claim before it acts,
and through each own append before it decides again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventlog.chain import Record
from eventlog.errors import AtollError, BlobError, Conflict, LogUnavailable
from eventlog.events import (
    COORDINATOR,
    BlobsReleased,
    CoordinatorElected,
    CoordinatorTick,
    Event,
    RoundCommitted,
    SnapshotSaved,
)
from eventlog.feed import Feed
from eventlog.log import EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.progress import target_reached
from leases.view import View
from outer.rounds import Facts, Verdict, decide
from outer.waiting import owed
from outer.workshop import Workshop

log_ = logging.getLogger("atoll.coordinator")
_RETRY_S = 1.0  # between attempts at work that needs a store which does not answer


@dataclass(slots=True)
class Standby:
    """When a standby may claim the term (R8): by its own clock, K ticks' time without a tick."""

    since: float | None = None  # when the silence that counts began

    def heard(self, now: float) -> None:
        """A coordinator's event was folded as it came."""
        self.since = now

    def may_claim(self, now: float, term: int, owed: bool, patience_s: float) -> bool:
        """Whether to claim: at once where nobody ever did, else after the patience."""
        if term == 0:
            return True
        if not owed:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return now - self.since >= patience_s


@dataclass(slots=True)
class Coordinator:
    """`breaks` counts the breaks of our connection: after one, a new term is claimed before the
    next tick (R8). `holder` names this process in the log, for people."""

    log: EventLog
    projection: Projection
    workshop: Workshop
    holder: str
    breaks: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _: None
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    merged: RoundCommitted | None = None
    saved: list[SnapshotSaved] = field(default_factory=list)
    _term: int | None = None  # ours, while we are the coordinator
    _breaks_seen: int = 0
    _next_tick: float = 0.0
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _standby: Standby = field(default_factory=Standby)
    _caught_up: bool = False
    _writer: Writer = field(init=False)
    _view: View = field(init=False)
    _feed: Feed = field(init=False)

    def __post_init__(self) -> None:
        self._writer = Writer(self.log, COORDINATOR, chained=True)
        self._view = View(self.projection.db)

    async def run(self) -> None:
        """Coordinate until the run has finished. Raises LogDamaged (R19) and VersionDiffers."""
        await self.projection.check(self.log)
        end = await self.log.last_sequence()
        try:
            async with Feed(self.log, self.projection.position.sequence) as self._feed:
                while not self._finished():
                    await self._turn(end)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _finished(self) -> bool:
        return self._caught_up and self._view.run().state == "finished"

    async def _turn(self, end: int) -> None:
        """Fold what is there, then lead or stand by; wait for news or our own clock."""
        self._reap()
        await self._fold_next(self._timeout_s())
        self._caught_up = self._caught_up or self.projection.position.sequence >= end
        if not self._caught_up or not self._view.exists():
            return
        if self._term is None:
            await self._stand_by()
        else:
            await self._lead()

    def _timeout_s(self) -> float:
        if not self._caught_up or not self._view.exists():
            return 1.0
        tick_s = self._view.timing().tick_s
        if self._term is None:
            return tick_s / 2
        return max(0.0, min(self._next_tick - self.clock(), tick_s))

    async def _fold_next(self, timeout_s: float) -> None:
        records = await self._feed.next(timeout_s)
        if records:
            self._fold(records)

    def _fold(self, records: Sequence[Record]) -> None:
        for entry, _ in self.projection.apply(records):
            if entry.record.subject == COORDINATOR:
                self._standby.heard(self.clock())
            if isinstance(entry.event, BlobsReleased) and self._term is not None:
                self._start("release", self._release(list(entry.event.blobs)))
        self._writer.set(*self._view.pen(COORDINATOR))
        if self._term is not None and self._view.run().term != self._term:
            self.say(f"another coordinator holds term {self._view.run().term}; standing by")
            self._term = None

    # -- terms ------------------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        run, timing = self._view.run(), self._view.timing()
        patience_s = timing.lost_ticks(run.live) * timing.tick_s
        if run.read_only:
            raise AtollError(f"this atoll is too old for the run: {run.read_only}")
        if self._standby.may_claim(self.clock(), run.term, owed(self._view), patience_s):
            await self._claim("nobody coordinates" if run.term else "the run's first")

    async def _claim(self, reason: str) -> None:
        """Claim the term by compare-and-set; the fold of our own claim makes us coordinator."""
        self._breaks_seen = self.breaks()
        self._standby.heard(self.clock())
        sequence = await self._append([CoordinatorElected(holder=self.holder, reason=reason)])
        if sequence is None:
            return
        self._term = sequence
        self._next_tick = self.clock() + self._view.timing().tick_s
        self.say(f"{self.holder} coordinates in term {sequence}: {reason}")

    # -- leading ----------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Tick when due, decide until nothing is left to decide, start what work is needed."""
        if self.breaks() != self._breaks_seen:
            self._term = None
            await self._claim("our own connection broke")
        while self._term is not None and not self._finished():
            events: Sequence[Event] = self._due_tick() or decide(self._view, self._facts())
            if not events or await self._append(events) is None:
                break
        if self._term is not None:
            self._start_work()

    def _due_tick(self) -> list[Event]:
        run, now = self._view.run(), self.clock()
        if not run.live:
            self._next_tick = now + self._view.timing().tick_s
            return []
        if now < self._next_tick:
            return []
        self._next_tick = now + self._view.timing().tick_s
        return [CoordinatorTick(tick=run.term_ticks + 1)]

    def _facts(self) -> Facts:
        shop = self.workshop
        ready = shop.state is not None and shop.state.version == self._view.run().version
        digests = None
        if ready and shop.digests is not None:
            digests = (shop.digests.parameters, shop.digests.momentum, shop.digests.residual)
        return Facts(self.verdicts, self.merged, tuple(self.saved), digests)

    async def _append(self, events: Sequence[Event]) -> int | None:
        """Append one batch and fold through it; None where another coordinator was faster."""
        try:
            sequence = await self._writer.append(events, Stamp(term=self._term))
        except Conflict as conflict:
            while self._writer.last < conflict.actual:
                await self._fold_next(1.0)
            return None
        except LogUnavailable as error:
            self.say(f"{error}; claiming a new term when it answers")
            self._term = None  # what became of the append shows in the log
            await asyncio.sleep(_RETRY_S)
            return None
        for event in events:
            log_.info("%s: %s", event.type, getattr(event, "reason", ""))
        while self.projection.position.sequence < sequence:
            await self._fold_next(1.0)
        return sequence

    # -- work beside the log ----------------------------------------------------------------------

    def _start_work(self) -> None:
        """Start whatever the folded state needs and is not under way."""
        run, round_ = self._view.run(), self._view.round()
        state = self.workshop.state
        pending = self.merged.version if self.merged else None
        if state is None or (state.version != run.version and state.version != pending):
            if "merge" not in self._tasks:
                self._start("recover", self._recover())
            return
        for delta in self._view.deltas("undecided"):
            if delta.token[0] not in self.verdicts:
                self._start(f"verdict {delta.token[0]}", self._judge(delta.token[0]))
        if self.merged is not None and (round_ is None or round_.cut != self.merged.cut):
            self.merged = None
        if state.version != run.version:
            return
        if round_ is not None and round_.state == "closed" and self.merged is None:
            self._start("merge", self._merge())
        self._start_snapshot(run.version)

    def _start_snapshot(self, version: int) -> None:
        row = self._view.version(version)
        if row is None or row.snapshot_blob is not None:
            return
        due = version % self._view.config().snapshots.every_versions == 0
        stored = any(one.version == version for one in self.saved)
        if (due or target_reached(self._view.db) or self._view.run().state == "stopping") and (
            not stored
        ):
            self._start(f"snapshot {version}", self._snapshot(version))

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._tasks:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda _: self._feed.notify())
        self._tasks[name] = task

    def _reap(self) -> None:
        """Collect finished work. A store that does not answer is asked again; the rest is fatal."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                task.result()

    async def _recover(self) -> None:
        async with _retried(self, "recovering the model"):
            self.merged = None
            await self.workshop.recover(self._view)

    async def _judge(self, seq: int) -> None:
        delta = self._view.delta(seq)
        if delta is None:
            return
        async with _retried(self, f"checking the delta of {delta.site}"):
            self.verdicts[seq] = await self.workshop.verdict(delta)

    async def _merge(self) -> None:
        round_ = self._view.round()
        if round_ is None or round_.state != "closed":
            return
        position = self.projection.position
        deltas = self._view.deltas("cut")
        async with _retried(self, f"merging round {round_.round}"):
            self.merged = await self.workshop.merge(
                self._view, round_, deltas, position.sequence, position.log_digest
            )

    async def _snapshot(self, version: int) -> None:
        row = self._view.version(version)
        if row is None:
            return
        async with _retried(self, f"saving version {version}"):
            saved = await self.workshop.snapshot(row)
            if saved is not None:
                self.saved.append(saved)

    async def _release(self, blobs: list[str]) -> None:
        async with _retried(self, f"releasing {len(blobs)} blobs"):
            await self.workshop.blobs.release(blobs)
            self.workshop.forget(blobs)


class _retried:
    """Work whose blob store may not answer: said, and left for the next turn to start again."""

    def __init__(self, coordinator: Coordinator, what: str) -> None:
        self._say, self._what = coordinator.say, what

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, BlobError):
            return False
        self._say(f"{self._what}: {error}; trying again")
        await asyncio.sleep(_RETRY_S)
        return True


def projection_path(folder: Path, run: str) -> Path:
    """Where a coordinator keeps its fold of a run."""
    return folder / f"{run}-coordinator.sqlite"
