"""The live view as a thing that eats records and gives frames; whoever owns the screen shows them.

view = LiveView(console)
with rich.live.Live(auto_refresh=False, console=console) as screen:
    view.update(records)
    screen.update(view.frame(), refresh=True)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from eventlog.chain import Record
from eventlog.projector import Projection
from leases.overhead import Overhead
from leases.table import LeaseTable
from leases.view import View
from ops.watch.advice import Advisor
from ops.watch.pace import Pace
from ops.watch.render import Foot, Frame
from ops.watch.scene import Scene, scene
from ops.watch.trails import Trails
from ops.watch.words import Told, tell

MAX_TOLD = 8  # events that a picture without a screen to fill shows
MAX_TOLD_FIT = 60  # kept for a screen: as many as it has lines for are shown


class LiveView:
    """Folds a whole log in memory, from its first record on, and draws it.

    `run`: the name to show before `RunCreated` is folded. `clock`: Unix seconds, for ages. `fit`:
    whether frames keep to the console's height; otherwise they are as long as they need to be.
    `advisor`: says what whoever watches can do; by default nothing is said. `away`: for how long
    the broker has not answered (seconds), None while it does.
    """

    def __init__(
        self,
        console: Console,
        run: str = "",
        *,
        clock: Callable[[], float] = time.time,
        fit: bool = True,
        advisor: Advisor | None = None,
        away: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._away, self._was_away = away, False
        self._console, self._run, self._clock, self._fit = console, run, clock, fit
        self._advisor = advisor
        self._projection = Projection(":memory:", [LeaseTable()], run)
        self._view = View(self._projection.db)
        self._pace, self._overhead, self._trails = Pace(), Overhead(), Trails()
        self._told: deque[Told] = deque(maxlen=MAX_TOLD_FIT if fit else MAX_TOLD)

    def update(self, records: Sequence[Record]) -> list[Told]:
        """Fold the next records; the events among them that are worth a line. Raises LogDamaged
        where they do not go on from the last ones."""
        told = []
        for entry, (void,) in self._projection.apply(records):
            self._pace.note(entry, void, self._view)
            self._trails.note(entry, void, self._view)
            self._overhead.see(entry, void)
            said = tell(entry, void)
            if said is not None:
                told.append(said)
        self._told.extend(told)
        return told

    def scene(self, now_s: float | None = None) -> Scene:
        """What there is to show at a time (Unix seconds; by default, now)."""
        now_s = self._clock() if now_s is None else now_s
        away_s = self._away()
        if away_s is None and self._was_away:
            self._pace.back_s = now_s
        self._was_away = away_s is not None
        pace, trails = self._pace, self._trails
        shown = scene(self._view, self._run, pace, trails, self._told, now_s, away_s)
        if self._advisor is not None:
            advice = self._advisor.advise(shown.run, shown.state, shown.waiting)
            shown = replace(shown, next=advice)
        return replace(shown, overhead=self._overhead.share)

    def frame(self, now_s: float | None = None, foot: Foot | None = None) -> Frame:
        """The scene as something that rich can print. It is complete: printing it, even from
        another thread, asks nothing of this object. `foot`: gives a last line for a width."""
        height = self._console.height - 1 if self._fit else None
        return Frame(self.scene(now_s), height, foot)

    def remark(self, what: str, now_s: float) -> None:
        """Put something that stands in no log among the events."""
        self._told.append(Told(self._pace.last_sequence, int(now_s * 1e9), "—", what, "", "", ""))

    @property
    def end_s(self) -> float:
        """The broker's time of the last record, Unix seconds; 0 before any."""
        return self._pace.last_s

    @property
    def outcome(self) -> str:
        """How the run ended, in words; '' while it has not."""
        run = self._view.run()
        return run.reason if run.state == "finished" else ""

    def close(self) -> None:
        """Forget everything."""
        self._projection.close()
