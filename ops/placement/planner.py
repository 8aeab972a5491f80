"""The planner of a run: folds the log, plans when something has changed, says so. One at a time.

Its appends expect the last sequence of its subject, so of two that plan at once one loses, folds on
and stands by; it takes over when the other has said nothing for long: whoever leads says something
at least every `replan_s`. It keeps nothing that the log does not hold, and touches no queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eventlog.chain import Record
from eventlog.errors import AtollError, Conflict, LogUnavailable
from eventlog.events import PLANNER, PlacementPlanned, shortened
from eventlog.feed import Feed
from eventlog.log import EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases import jobs as told
from leases.progress import goal
from leases.view import View
from ops.placement.knowledge import Knowledge
from ops.placement.plan import Plan, plan
from ops.placement.shapes import Action, Do
from ops.placement.sites import Sites
from ops.placement.situation import Facts, outlook
from ops.placement.wording import in_words
from ops.placement.wording import told as as_told

_SILENT = 2.5  # times `replan_s`: then the planner that led is gone
_LOOKS = 20.0  # looks at the situation within `replan_s`, when nothing happens
_RETRY_S = 1.0


@dataclass(slots=True)
class Planner:
    """`holder` names this process in the log. `clock`: epoch seconds, as agents tell theirs;
    `patience`: a monotonic one, for how long another planner has been silent."""

    log: EventLog
    projection: Projection
    sites: Sites
    holder: str
    clock: Callable[[], float] = time.time
    patience: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _: None
    known: Knowledge = field(default_factory=Knowledge)
    _view: View = field(init=False)
    _writer: Writer = field(init=False)
    _feed: Feed = field(init=False)
    _founded: str = ""
    _heard: float | None = None  # when another planner last spoke
    _spoke: float | None = None  # when we did
    _in_force: list[tuple[Any, ...]] | None = None
    _news: bool = True
    _looked: float = 0.0

    async def run(self) -> None:
        """Plan until the run has finished. Raises LogDamaged (R19)."""
        self._view = View(self.projection.db)
        self._writer = Writer(self.log, PLANNER)
        end = await self.log.last_sequence()
        async with Feed(self.log, self.projection.position.sequence) as self._feed:
            while True:
                self._fold(await self._feed.next(1.0))
                if self.projection.position.sequence < end or not self._view.exists():
                    continue
                if self._view.run().read_only:
                    raise AtollError(
                        f"this atoll is too old for the run: {self._view.run().read_only}"
                    )
                if self._view.run().state == "finished":
                    return
                await self._turn()

    async def look(self) -> list[dict[str, Any]]:
        """The actions of a plan as things stand; nothing is written."""
        self._view = View(self.projection.db)
        while records := await self.log.read(self.projection.position.sequence):
            self._fold(records)
        return self.decide()[1]

    async def _turn(self) -> None:
        now = self.patience()
        due = self._looked + self.sites.replan / _LOOKS
        if (not self._news and now < due) or self._stands_by(now):
            return
        self._news, self._looked = False, now
        made, actions, estimates = self.decide()
        repeat = self._spoke is None or now - self._spoke >= self.sites.replan
        if [_sameness(one) for one in actions] == self._in_force and not repeat:
            return
        event = PlacementPlanned(
            actions=tuple(actions),
            estimates=tuple(estimates),
            reason=shortened(made.reason),
            holder=self.holder,
        )
        await self._append(event)

    def decide(self) -> tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]]:
        """The plan as things stand, its actions for agents, and the estimates it rests on."""
        facts, now = self._facts(), self.clock()
        seen = outlook(self.sites.site, told.jobs(self.projection.db), self.known, facts, now)
        if facts.state == "running":
            made = plan(seen.situation, seen.estimates)
        else:
            why = f"the run is {facts.state}: nothing more is asked for"
            made = Plan(tuple(Action(Do.HOLD, one.name, why) for one in self.sites.site), why)
        return made, as_told(made, seen, self.known, facts), in_words(seen.estimates.new)

    def _facts(self) -> Facts:
        run = self._view.run()
        return Facts(
            run=run.name or self.log.run,
            founded=self._founded,
            state=run.state,
            work_left=self._work_left(),
        )

    def _work_left(self) -> float | None:
        """Tokens to the target; of one in rounds, as many a round as so far, None before any."""
        run, aim = self._view.run(), goal(self._view.config(), self._view.index())
        if aim.tokens is not None:
            return float(max(0, aim.tokens - run.merged_tokens))
        if not run.version or aim.rounds is None:
            return None
        return max(0, aim.rounds - run.version) * run.merged_tokens / run.version

    def _stands_by(self, now: float) -> bool:
        """Whether another planner leads, for all that we know."""
        if self._heard is None:
            return False
        return now - self._heard < _SILENT * self.sites.replan

    def _fold(self, records: Sequence[Record]) -> None:
        for entry, voids in self.projection.apply(records):
            if not self._founded and entry.envelope is not None:
                self._founded = entry.envelope.id
            self.known.see(entry, voids[0])
            event = entry.event
            if isinstance(event, PlacementPlanned) and not voids[0]:
                self._hear(event, entry.envelope.at if entry.envelope else 0.0)
            elif entry.record.subject != PLANNER:
                self._news = self._news or _matters(entry.envelope and entry.envelope.type)

    def _hear(self, event: PlacementPlanned, at: float) -> None:
        self._in_force = [_sameness(one) for one in event.actions]
        if event.holder == self.holder:
            self._heard = None
        elif self.clock() - at < _SILENT * self.sites.replan:  # history is no sign of life
            if self._heard is None:
                self.say(f"{event.holder} plans; standing by")
            self._heard = self.patience()

    async def _append(self, event: PlacementPlanned) -> None:
        """Append by compare-and-set, and fold through it."""
        self._writer.set(*self._view.pen(PLANNER))
        try:
            sequence = await self._writer.append([event], Stamp())
        except Conflict:
            self._heard = self.patience()
            return
        except LogUnavailable as error:
            self.say(f"{error}; planning again when it answers")
            self._news = True
            return
        self._spoke = self.patience()
        self.say(f"planned: {event.reason}")
        while self.projection.position.sequence < sequence:
            self._fold(await self._feed.next(_RETRY_S))


def _matters(kind: str | None) -> bool:
    """Whether an event may change the plan: what agents say, who comes and goes, the run's life."""
    return (kind or "").startswith(
        ("job.", "queue.", "agent.", "placement.", "site.admitted", "site.departed", "run.")
    )


def _sameness(action: dict[str, Any]) -> tuple[Any, ...]:
    """What of an action has to differ for it to be another one: not its words, nor its guesses."""
    shapes = action.get("shapes") or ()
    return (
        action.get("do"),
        action.get("site"),
        action.get("job"),
        tuple(action.get("shape") or ()),
        tuple(tuple(one) for one in shapes),
        action.get("after"),
    )
