"""Strips of the live view: how loss and rate went, and the timeline of sites."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from ops.watch.scene import Line, Scene
from outer.waiting import span

LEVELS = ("▁▂▃▄▅▆▇█", "_.-=+*%#")  # in Unicode, in ASCII
HERE, TRAINED, NOT_HERE, LEFT = "░-", "█#", " .", "✕x"
MIN_STRIP = 8  # cells that a strip is worth
MAX_BAR = 3  # cells of one value
MAX_LINES = 40  # sites that the timeline shows


def sparkline(values: Sequence[float], width: int, plain: bool) -> str:
    """The newest `width` values as bars between their smallest and largest, few ones wide; what is
    not finite is a gap."""
    shown = [value for value in list(values)[-width:] for _ in range(max(1, _wide(values, width)))]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    levels = LEVELS[plain]
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    bars = (
        levels[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown
    )
    return "".join(bars)


def _wide(values: Sequence[float], width: int) -> int:
    return min(MAX_BAR, width // max(1, len(values)))


def trends(scene: Scene, width: int, plain: bool) -> list[Text]:
    """Loss and rate by round, side by side, with their first and last values; none before two
    rounds."""
    parts = [("loss", scene.losses, "cyan", ".3f"), ("tokens/s", scene.rates, "green", ",.0f")]
    shown = [part for part in parts if len(part[1]) > 1]
    room = width // max(1, len(shown)) - 2
    line = Text(no_wrap=True)
    for name, values, colour, form in shown:
        first, last = f"{name} {values[0]:{form}} ", f" {values[-1]:{form}}"
        cells = room - len(first) - len(last)
        if cells < MIN_STRIP:
            continue
        strip = sparkline(values, cells, plain)
        line.append(first, "dim").append(strip, colour).append(last)
        line.append("  ")
    line.rstrip()
    return [line] if line.plain else []


def timeline(scene: Scene, width: int, plain: bool) -> list[Text]:
    """One line a site (the first ones by name, where there are many), over the whole run: where it
    was there, where it trained, where it left; then the scale. None where nobody ever came."""
    lines = [line for line in scene.lines if line.stays][:MAX_LINES]
    began_s, end_s = scene.began_s, scene.now_s
    if not lines or began_s is None or end_s <= began_s:
        return []
    names = min(max(len(line.site) for line in lines), max(4, width // 5))
    cells = width - names - 1
    if cells < MIN_STRIP:
        return []
    drawn = []
    for line in lines:
        name = line.site if len(line.site) <= names else line.site[: names - 1] + "…"[: not plain]
        text = Text(name.ljust(names + 1), "bold", no_wrap=True)
        drawn.append(text.append_text(_strip(line, began_s, end_s, cells, plain)))
    now = f"{span(end_s - began_s)} in all"
    legend = f"{TRAINED[plain]} trains  {HERE[plain]} is there  {LEFT[plain]} left"
    scale = Text(" " * (names + 1) + legend, "dim", no_wrap=True)
    if len(legend) + len(now) + 2 <= cells:
        scale.append(now.rjust(cells - len(legend)))
    return [*drawn, scale]


def _strip(line: Line, began_s: float, end_s: float, cells: int, plain: bool) -> Text:
    def cell(time_s: float) -> int:
        return min(cells - 1, max(0, int((time_s - began_s) / (end_s - began_s) * cells)))

    signs, styles = [NOT_HERE[plain]] * cells, [""] * cells
    for since_s, until_s, _ in line.stays:
        for at in range(cell(since_s), cell(end_s if until_s is None else until_s) + 1):
            signs[at], styles[at] = HERE[plain], "blue"
    for since_s, until_s in line.training:
        for at in range(cell(since_s), cell(until_s) + 1):
            signs[at], styles[at] = TRAINED[plain], "blue"
    for _, until_s, code in line.stays:
        if until_s is not None and code != "finished":
            signs[cell(until_s)], styles[cell(until_s)] = LEFT[plain], "bold red"
    text = Text(no_wrap=True)
    for sign, style in zip(signs, styles, strict=True):
        text.append(sign, style)
    return text
