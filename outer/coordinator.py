"""The coordinator: folds the log, lets `rounds.decide` decide, appends, ticks. One at a time (R5).

It keeps nothing that log and blobs do not hold. Any number may run: one is elected by its claim of
the term, the others stand by and fold. Whoever claims folds through its own claim before it acts,
and through each own append before it decides again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eventlog.chain import Record
from eventlog.errors import (
    AtollError,
    Conflict,
    LogUnavailable,
)
from eventlog.events import (
    COORDINATOR,
    CoordinatorElected,
    CoordinatorTick,
    Event,
    RoundCommitted,
)
from eventlog.feed import Feed
from eventlog.log import MAX_BATCH, EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.states import is_void
from leases.view import View
from outer.arithmetic import check_ours
from outer.duties import Duties
from outer.jobs import RETRY_S, Jobs
from outer.rounds import decide
from outer.standby import Standby, owed
from outer.workshop import Workshop

log_ = logging.getLogger("atoll.coordinator")
_MAX_VOID = 3  # appends in a row without effect, before news or a tick are waited for


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
    pen: Callable[..., Writer] = Writer  # a simulator's has ids and a clock of its own
    max_grants: int = MAX_BATCH  # of one append
    software: Mapping[str, str] = field(default_factory=dict)  # versions, for the log
    _voids: list[str] = field(default_factory=list)  # what the fold said of our last append
    _term: int | None = None  # ours, while we are the coordinator
    _stood_by: int = 0  # the term that we said we stand by in
    _breaks_seen: int = 0
    _next_tick: float = 0.0
    _standby: Standby = field(default_factory=Standby)
    _caught_up: bool = False
    _is_checked: bool = False  # our arithmetic, against the run's
    _writer: Writer = field(init=False)
    _view: View = field(init=False)
    _feed: Feed = field(init=False)
    _jobs: Jobs = field(init=False)
    _duties: Duties = field(init=False)

    def __post_init__(self) -> None:
        self._writer = self.pen(self.log, COORDINATOR, chained=True)
        self._view = View(self.projection.db)
        self._jobs = Jobs(self.say, lambda: self._feed.notify())
        self._duties = Duties(self.projection, self._view, self.workshop, self._jobs, self.say)

    async def run(self) -> None:
        """Coordinate until the run has finished. Raises LogDamaged (R19), VersionDiffers and
        ArithmeticDiffers: the last before anything is claimed."""
        self.workshop.sweep()
        await self.projection.check(self.log)
        end = await self.log.last_sequence()
        try:
            async with Feed(self.log, self.projection.position.sequence) as self._feed:
                while not self._finished():
                    await self._turn(end)
        finally:
            await self._jobs.stop()

    @property
    def leads(self) -> bool:
        """Whether this one coordinates now, and does not stand by."""
        return self._term is not None

    def _finished(self) -> bool:
        return self._caught_up and self._view.run().state == "finished"

    async def _turn(self, end: int) -> None:
        """Fold what is there, then lead or stand by; wait for news or our own clock."""
        self._jobs.reap()
        await self._fold_next(self._timeout_s())
        self._caught_up = self._caught_up or self.projection.position.sequence >= end
        if not self._caught_up or not self._view.exists():
            return
        if self._view.run().read_only:
            raise AtollError(f"this atoll is too old for the run: {self._view.run().read_only}")
        if not self._is_checked:
            otherwise = "no site could follow the versions it would commit"
            check_ours(self._view.arithmetic(), otherwise, "coordinate")
            self._is_checked = True
        if self._term is None:
            await self._stand_by()
        if self._term is not None:  # also at once after our claim: what is owed waits no tick
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
        for entry, voids in self.projection.apply(records):
            if entry.record.subject == COORDINATOR:
                self._standby.heard(self.clock())
                self._voids.append(voids[0])
            if self._term is not None and not is_void(voids[0]):
                self._duties.note(entry)
        self._writer.set(*self._view.pen(COORDINATOR))
        if self._term is not None and self._view.run().term != self._term:
            self._term = None

    # -- terms ------------------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        run, timing = self._view.run(), self._view.timing()
        patience_s = timing.lost_ticks(run.live) * timing.tick_s
        if run.term not in (0, self._stood_by):
            self._stood_by = run.term
            self.say(
                f"standing by: {run.holder} coordinates, elected by event #{run.term}; this one "
                f"takes over where that says nothing for {patience_s:g} s though it is needed"
            )
        if self._standby.may_claim(self.clock(), run.term, owed(self._view), patience_s):
            await self._claim("nobody coordinates" if run.term else "the run's first")

    async def _claim(self, reason: str) -> None:
        """Claim the term by compare-and-set; the fold of our own claim makes us coordinator."""
        self._breaks_seen = self.breaks()
        self._standby.heard(self.clock())
        versions = dict(self.software) or None
        claim = CoordinatorElected(holder=self.holder, reason=reason, software=versions)
        sequence = await self._append([claim])
        if sequence is None:
            return
        self._term = sequence
        self._duties.resume()
        self._next_tick = self.clock() + self._view.timing().tick_s
        self.say(f"{self.holder} coordinates, elected by event #{sequence} (its term): {reason}")

    # -- leading ----------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Tick when due, decide until nothing is left to decide, start what work is needed."""
        if self.breaks() != self._breaks_seen:
            self._term = None
            await self._claim("our own connection broke")
        num_void = 0
        while self._term is not None and not self._finished() and num_void < _MAX_VOID:
            events: Sequence[Event] = self._due_tick() or self._decide()
            if not events or await self._append(events) is None:
                break
            num_void = num_void + 1 if all(map(is_void, self._voids)) else 0
        if self._term is not None:
            self._duties.start()

    def _due_tick(self) -> list[Event]:
        run, now = self._view.run(), self.clock()
        if not run.live and not self._view.backs_off():
            self._next_tick = now + self._view.timing().tick_s
            return []
        if now < self._next_tick:
            return []
        self._next_tick = now + self._view.timing().tick_s
        return [CoordinatorTick(tick=run.term_ticks + 1)]

    def _decide(self) -> list[Event]:
        return decide(self._view, self._duties.facts(), self.max_grants)

    async def _append(self, events: Sequence[Event]) -> int | None:
        """Append one batch and fold through it; None where another coordinator was faster."""
        self._voids = []
        try:
            sequence = await self._writer.append(events, Stamp(term=self._term))
        except Conflict as conflict:
            while self._writer.last < conflict.actual:
                await self._fold_next(1.0)
            return None
        except LogUnavailable as error:
            away = str(error).removesuffix("; try again")
            self.say(f"{away}; claiming a new term when it answers")
            self._term = None  # what became of the append shows in the log
            await asyncio.sleep(RETRY_S)
            return None
        for event in events:
            log_.info("%s: %s", event.type, getattr(event, "reason", ""))
            if isinstance(event, RoundCommitted):
                self.say(f"version {event.version}: {event.reason}")
        while self.projection.position.sequence < sequence:
            await self._fold_next(1.0)
        return sequence
