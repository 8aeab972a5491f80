"""Pieces of HTML, made of text that is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ops.describe import clean
from ops.report.canvas import Draw, picture
from outer.waiting import span


class Html(str):
    """Markup; every other string is text."""

    __slots__ = ()


def text(value: Any) -> Html:
    """A value as it may stand in a page: nothing a log says is taken as markup."""
    if isinstance(value, Html):
        return value
    return Html(escape(clean(str(value))))


def join(parts: Iterable[str]) -> Html:
    """Pieces one below the other."""
    return Html("\n".join(text(part) for part in parts if part))


def tag(name: str, content: Any = "", **attributes: str) -> Html:
    """One element; `class_` and `data_fact` are the attributes class and data-fact."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    said = "".join(f' {key}="{escape(value)}"' for key, value in pairs)
    return Html(f"<{name}{said}>{text(content)}</{name}>")


def lasting(seconds: float | None) -> str:
    """A time as a table tells it; a dash where there is none. Clocks of several machines may make
    one of less than nothing, which is none to tell."""
    return "–" if seconds is None else span(max(0.0, seconds))


def tile(value: str, what: str, more: str, fact: str) -> Html:
    """One of the numbers that are read first."""
    inside = [tag("i", what), tag("b", value, data_fact=fact), tag("i", more) if more else ""]
    return tag("div", join(inside), class_="tile")


def figure(name: str, heights_in: tuple[float, float], draw: Draw, caption: str) -> Html:
    """A picture with what it shows in words. `heights_in`: wide, narrow."""
    inside = [Html(picture(name, *heights_in, draw)), tag("figcaption", caption)]
    return tag("figure", join(inside), role="img", aria_label=caption)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[str]) -> Html:
    """A table that scrolls by itself where the screen is narrow. `left`: columns of text; the
    others are numbers. The last of them may be long."""
    kinds = ["" if column in left else "n" for column in columns]
    if kinds and not kinds[-1]:
        kinds[-1] = "why"
    head = join(_cell("th", *pair) for pair in zip(columns, kinds, strict=True))
    body = [
        tag("tr", join(_cell("td", *pair) for pair in zip(row, kinds, strict=True))) for row in rows
    ]
    whole = join([tag("thead", tag("tr", head)), tag("tbody", join(body))])
    return tag("div", tag("table", whole), class_="scroll")


def _cell(name: str, value: Any, kind: str) -> Html:
    content = f"{value:,}" if isinstance(value, int) else value
    return tag(name, content, class_=kind) if kind else tag(name, content)
