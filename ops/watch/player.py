"""Playing a past log on a screen: where it stands, what a key does, and the scrubber that shows it.

Pure: time that passes and keys come in, the position comes out. Times are seconds of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from eventlog.chain import Record
from outer.waiting import span

STEP = 0.05  # of the whole log, with an arrow key
MIN_SPEED, MAX_SPEED = 1 / 64, 1e6
KEYS = "space pauses  ← → seek  + - speed  q quits"


@dataclass(slots=True)
class Player:
    """`records`: the whole log; `speed`: seconds of the log a second; `touched`: whether somebody
    pressed a key, so that the end is no reason to leave."""

    records: Sequence[Record]
    speed: float
    at_s: float = 0.0
    paused: bool = False
    touched: bool = False
    quits: bool = False
    _times: list[float] = field(init=False)

    def __post_init__(self) -> None:
        first = self.records[0].time_ns if self.records else 0
        self._times = [(record.time_ns - first) / 1e9 for record in self.records]
        for number in range(1, len(self._times)):  # the broker's clock may have been set back
            self._times[number] = max(self._times[number], self._times[number - 1])

    @property
    def end_s(self) -> float:
        """When the last record comes."""
        return self._times[-1] if self._times else 0.0

    @property
    def now_s(self) -> float:
        """The time it shows, Unix seconds."""
        return (self.records[0].time_ns / 1e9 if self.records else 0.0) + self.at_s

    @property
    def due(self) -> int:
        """How many records have come by now."""
        return bisect_right(self._times, self.at_s)

    @property
    def over(self) -> bool:
        """Whether there is nothing more to show, or to wait for."""
        return self.quits or (self.at_s >= self.end_s and not self.touched)

    def pass_time(self, seconds: float) -> None:
        """So much time passed before the screen."""
        if not self.paused:
            self._go(self.at_s + seconds * self.speed)

    def press(self, key: str) -> None:
        """A key: a character, or "left", "right", "home", "end". Others mean nothing."""
        step_s = max(self.end_s * STEP, 0.001)
        self.touched = True
        match key:
            case " ":
                self.paused = not self.paused
            case "left":
                self._go(self.at_s - step_s)
            case "right":
                self._go(self.at_s + step_s)
            case "home":
                self._go(0.0)
            case "end":
                self._go(self.end_s)
            case "+" | "=":
                self.speed = min(MAX_SPEED, self.speed * 2)
            case "-":
                self.speed = max(MIN_SPEED, self.speed / 2)
            case "q" | "\x1b" | "\x03":
                self.quits = True

    def _go(self, at_s: float) -> None:
        self.at_s = min(max(at_s, 0.0), self.end_s)

    def scrubber(self, width: int, plain: bool) -> Text:
        """Where it stands, in one line: state, time, bar, speed, keys as far as there is room."""
        sign = ("||" if plain else "⏸") if self.paused else (">" if plain else "▶")
        head = f"{sign} {span(self.at_s)} of {span(self.end_s)} "
        tail = f" {self.speed:g}×" if not plain else f" {self.speed:g}x"
        keys = "  " + (KEYS.replace("← →", "arrows") if plain else KEYS)
        if len(head) + len(tail) + len(keys) + 20 > width:
            keys = ""
        cells = width - len(head) - len(tail) - len(keys)
        line = Text(head, "bold", no_wrap=True)
        if cells >= 3:
            share = self.at_s / self.end_s if self.end_s > 0 else 1.0
            done = round((cells - 1) * share)
            full, knob, rest = ("=", "@", "-") if plain else ("━", "●", "─")
            line.append(full * done, "green").append(knob, "bold")
            line.append(rest * (cells - 1 - done), "dim")
        line.append(tail).append(keys, "dim")
        line.truncate(width, overflow="ellipsis")
        return line
