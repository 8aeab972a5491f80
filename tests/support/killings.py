"""SIGKILL to whichever of two coordinators takes a decision of some type, before or after it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

from eventlog.codec import event_id
from eventlog.events import COORDINATOR, CoordinatorElected, Event, RunFinished
from tests.support.fleet import Fleet
from tests.support.tap import Tap, Trap, event, tapped
from tests.support.watched import History

NAMES = ("first", "second")
Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")
Provoke = Callable[[Fleet], Awaitable[None]]


@dataclass(slots=True)
class Killings:
    """Two coordinators of one run, each behind a tap of its own, and what was done to them."""

    fleet: Fleet
    taps: dict[str, Tap]
    ids: dict[Moment, list[str]] = field(default_factory=lambda: {"before": [], "after": []})
    lines: list[str] = field(default_factory=list)  # of the table of outcomes

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, fleet: Fleet) -> AsyncIterator[Killings]:
        async with AsyncExitStack() as stack:
            taps = {name: await stack.enter_async_context(tapped(fleet.url)) for name in NAMES}
            for name, tap in taps.items():
                fleet.routes[name] = tap.url
                fleet.coordinate(name)
            fleet.leaving.update(NAMES)
            yield cls(fleet, taps)

    async def kill(
        self,
        kind: type[Event],
        when: Moment,
        provoke: Provoke | None = None,
        calm: Provoke | None = None,
    ) -> None:
        """Kill whoever decides so next; then the run goes on without it, and it comes back."""
        fleet, killed = self.fleet, list[str]()
        before, version = self._num_terms(), fleet.history.view.run().version
        traps = {
            name: tap.set(Trap(event(kind.type, COORDINATOR), when, self._killer(name, killed)))
            for name, tap in self.taps.items()
        }
        if provoke is not None:
            await provoke(fleet)
        await fleet.until(lambda _: killed, f"{kind.type} to be decided", 60)
        for tap in self.taps.values():
            tap.clear()
        caught = traps[killed[0]].caught
        assert caught is not None, "nothing was killed"
        self.ids[when].append(event_id(caught.payload))
        fleet.coordinate(killed[0])
        if calm is not None:
            await calm(fleet)
        if kind is not RunFinished:
            await self._goes_on(f"after {kind.type}, {when}", before)
        after = fleet.history.view.run().version
        whole = "" if not caught.batch else ", its batch torn" if when == "before" else ", a batch"
        self.lines.append(f"{kind.type:22} {when + whole:24} {version:>4} -> {after}")

    async def _goes_on(self, what: str, num_terms: int) -> None:
        """Another term has begun, and a version was committed in it."""
        fleet = self.fleet
        await fleet.until(lambda _: self._num_terms() > num_terms, f"a term {what}", 30)
        at = fleet.history.of(CoordinatorElected)[-1][0]
        await fleet.until(lambda log: log.new_versions(at) >= 1, f"a version {what}", 60)

    def agrees_with(self, log: History) -> None:
        """What was lost on its way is nowhere; what was stored is there once, and counts."""
        found = Counter(entry.envelope.id for entry in log.entries if entry.envelope is not None)
        assert [found[name] for name in self.ids["before"]] == [0] * len(self.ids["before"])
        assert [found[name] for name in self.ids["after"]] == [1] * len(self.ids["after"])
        assert [void for void in log.voids if log.source(void[0]) == COORDINATOR] == []

    def _num_terms(self) -> int:
        return len(self.fleet.history.of(CoordinatorElected))

    def _killer(self, name: str, killed: list[str]) -> Callable[[], None]:
        def kill() -> None:
            self.fleet.kill(name)
            killed.append(name)

        return kill
