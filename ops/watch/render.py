"""Draws a scene for a console of any width: text only, nothing a log says is taken as markup.

One column; where the screen is wide, two above the events: sites, time and blocks; and words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from ops.describe import clean
from ops.numbers import size
from ops.watch import bars, strips
from ops.watch.layout import Section, shares, shown
from ops.watch.moving import Moving
from ops.watch.rows import rows
from ops.watch.scene import Scene
from ops.watch.trails import Refused
from ops.watch.words import Told, time_of_day
from outer.waiting import span

TWO_COLUMNS = 150
GUTTER = 3
MIN_TOLD, MIN_SITES, MIN_BAR = 3, 6, 3  # lines that a small screen shows at least
RUN_STATES = {
    "running": "green",
    "paused": "yellow",
    "stopping": "yellow",
    "finished": "bold green",
}


Foot = Callable[[int, bool], Text]


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a run. `height`: lines it may take; None for as many as it needs. `foot`: what
    draws a line below it, for a width, in ASCII or not."""

    scene: Scene
    height: int | None = None
    foot: Foot | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        width, plain = options.max_width, options.ascii_only
        top = [*_header(self.scene, width, plain), *_next(self.scene, width, console)]
        yield from top
        below = 0 if self.foot is None else 1
        rest = None if self.height is None else max(0, self.height - len(top) - below)
        yield from self._body(width, rest, plain, console)
        if self.foot is not None:
            yield self.foot(width, plain)

    def _body(
        self, width: int, rest: int | None, plain: bool, console: Console
    ) -> Iterator[RenderableType]:
        events = _events(self.scene, width)
        if width < TWO_COLUMNS:
            left, right = _left(self.scene, width, plain), _right(self.scene, width, console)
            yield from _stack((*left, *right, events), rest, width, plain)
            return
        left_width = width * 11 // 20
        right_width = width - left_width - GUTTER
        upper = None if rest is None else max(0, rest - events.least - 1)
        lines = list(
            _beside(
                _stack(_left(self.scene, left_width, plain), upper, left_width, plain),
                _stack(_right(self.scene, right_width, console), upper, right_width, plain),
                left_width,
            )
        )
        yield from lines
        lower = None if rest is None else rest - len(lines)
        yield from _stack((events,), lower, width, plain)


def _left(scene: Scene, width: int, plain: bool) -> tuple[Section, ...]:
    table = rows(scene.sites, width)
    blocks = bars.epochs(scene.epochs, width, plain)
    return (
        Section("sites", table, min(len(table), MIN_SITES), 2, 3),
        Section("time", strips.timeline(scene, width, plain), 0, 5, 5),
        Section("", blocks, min(len(blocks), MIN_BAR), 0, 0),
    )


def _right(scene: Scene, width: int, console: Console) -> tuple[Section, ...]:
    waits = _waits(scene, width, console)
    refusals = [_refusal(one, width) for one in scene.refusals]
    return (
        Section("waiting", waits, min(2, len(waits)), 1, 1),
        Section("transfers", [_transfer(one, width) for one in scene.transfers], 0, 3, 2),
        Section("refusals (UTC)", refusals, 0, 4, 4, tail=True),
    )


def _events(scene: Scene, width: int) -> Section:
    told = [_event(one, width) for one in scene.told]
    return Section("events (UTC)", told, min(MIN_TOLD, len(told)), 2, 6, tail=True)


def _stack(
    sections: tuple[Section, ...], height: int | None, width: int, plain: bool
) -> list[Text]:
    lines: list[Text] = []
    for section, num in zip(sections, shares(height, sections), strict=True):
        if not num:
            continue
        if section.title:
            lines.append(_title(section.title, width, plain))
        lines += shown(section, num)
    return lines


def _beside(left: list[Text], right: list[Text], left_width: int) -> Iterator[Text]:
    for number in range(max(len(left), len(right))):
        line = left[number].copy() if number < len(left) else Text()
        line.no_wrap = True
        line.append(" " * (left_width + GUTTER - line.cell_len))
        if number < len(right):
            line.append_text(right[number])
        line.rstrip()
        yield line


def _title(name: str, width: int, plain: bool) -> Text:
    line = "-" if plain else "─"
    return _line(f"{line} {name} ".ljust(width, line), width, "dim")


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style, no_wrap=True, overflow="ellipsis", end="\n")
    line.truncate(width, overflow="ellipsis")
    return line


def _header(scene: Scene, width: int, plain: bool) -> list[Text]:
    first = Text.assemble(
        ("atoll ", "bold"),
        (clean(scene.run) or "?", "bold cyan"),
        "  ",
        (
            scene.state if scene.state != "none" else "not created",
            RUN_STATES.get(scene.state, "red"),
        ),
        f"  round {scene.round}  version {scene.version}",
    )
    if scene.broker_away_s is not None:
        first.append("  broker away", "bold red")
    who = f"  led by {clean(scene.coordinator)}, elected by #{scene.term}" if scene.term else ""
    first.append(who, "dim")
    first.truncate(width, overflow="ellipsis")
    lines = [first, bars.target(scene, width, plain), _facts(scene, width)]
    lines += strips.trends(scene, width, plain)
    if scene.state == "finished":
        lines.append(_line(clean(scene.reason), width, "bold"))
    return lines


def _next(scene: Scene, width: int, console: Console) -> list[Text]:
    """What a person can do, wrapped: a command that is cut off is none."""
    texts = (Text(clean(f"next: {line}"), "bold magenta") for line in scene.next)
    return [line for text in texts for line in text.wrap(console, max(10, width))]


def _facts(scene: Scene, width: int) -> Text:
    parts = ["loss " + (f"{scene.loss:.3f}" if scene.loss is not None else "not known yet")]
    parts.append(f"{scene.tokens_per_s:,.0f} tokens/s")
    if scene.eta_s is not None:
        soon = scene.eta_s < 1
        parts.append("done any moment" if soon else f"done in about {span(round(scene.eta_s))}")
    if scene.perplexity:
        version, perplexity = scene.perplexity
        parts.append(f"held-out perplexity {perplexity:.4g} (version {version})")
    if scene.overhead is not None:
        parts.append(f"stalled {scene.overhead:.1%} of the time")
    return _line("  ".join(parts), width)


def _waits(scene: Scene, width: int, console: Console) -> list[Text]:
    """Sentences, wrapped; what goes on is indented."""
    lines: list[Text] = []
    for wait in scene.waiting:
        rest = clean(f" {wait.what}" + (f", {wait.until}" if wait.until else ""))
        text = Text.assemble((clean(wait.who), "bold yellow"), rest)
        for number, line in enumerate(text.wrap(console, max(10, width - 2))):
            line.rstrip()
            lines.append(Text.assemble("  " if number else "", line))
    return lines


def _transfer(one: Moving, width: int) -> Text:
    """Site, direction, what, how much of how much, how fast, how long still."""
    verb = "stores" if one.way == "up" else "fetches"
    amount = size(one.of_bytes)
    if one.done_bytes is not None:
        amount = f"{size(one.done_bytes)} of {amount}, {one.done_bytes / one.of_bytes:.0%}"
    text = Text.assemble((clean(one.site), "bold cyan"), f" {verb} {one.what}: {amount}")
    if one.bytes_per_s:
        text.append(f", {size(one.bytes_per_s)}/s" + " as last time" * (not one.measured))
    if one.eta_s is not None:
        text.append(f", {span(one.eta_s)} left", "bold")
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _refusal(one: Refused, width: int) -> Text:
    text = Text.assemble((time_of_day(one.time_s), "dim"), "  ", (clean(one.site), "bold red"))
    text.append(f" {one.what} refused ({one.code})", "red").append(f" — {clean(one.reason)}", "dim")
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _event(told: Told, width: int) -> Text:
    text = Text.assemble((told.clock(), "dim"), "  ", (told.who, "bold"), " ")
    text.append(told.what, "red" if told.void else "")
    if told.why():
        text.append(f" — {told.why()}", "dim")
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
