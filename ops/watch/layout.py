"""How a frame shares its lines out: a pure decision, by what matters most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title ('': none). `least`: of its lines that it is worth showing with (0: it
    can be left out); `rank`: who gets these first, the smallest; `grow`: likewise, of what is left
    then; `tail`: of its lines the last ones count, and nothing is said of those before."""

    title: str
    lines: Sequence[Text]
    least: int
    rank: int
    grow: int
    tail: bool = False


def shares(height: int | None, sections: Sequence[Section]) -> list[int]:
    """How many lines each section shows; titles cost one each, and are not counted. First each
    gets its least, then what is left fills them. `height`: None for no bound."""
    most = [len(section.lines) for section in sections]
    if height is None:
        return most
    given = [0] * len(sections)
    order = sorted(range(len(sections)), key=lambda number: sections[number].rank)
    free = height
    for number in order:
        least = min(sections[number].least, most[number])
        cost = least + bool(sections[number].title)
        if least and cost <= free:
            given[number], free = least, free - cost
    for number in sorted(order, key=lambda number: sections[number].grow):
        title = bool(sections[number].title) and not given[number]
        more = min(most[number] - given[number], free - title)
        if more > 0:
            given[number] += more
            free -= more + title
    return given


def shown(section: Section, num: int) -> list[Text]:
    """Its lines, cut to so many; what is cut is counted."""
    if num >= len(section.lines):
        return list(section.lines)
    if section.tail:
        return list(section.lines[len(section.lines) - num :]) if num else []
    hidden = len(section.lines) - num + 1
    return [*section.lines[: num - 1], Text(f"… {hidden} more lines", "dim")] if num else []
