"""Pictures as SVG that lives inside a page: the same bytes for the same numbers, on any machine
with the same matplotlib; in the page's colours, light or dark; text stays text.

matplotlib knows no colours of a page, so it draws with stand-ins, which are exchanged for CSS
variables afterwards. Each picture is drawn twice, for wide and for narrow screens: scaled, its
letters would be too small to read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ops.numbers import time_unit

NAMES = ("ink", "muted", "rule", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "bad", "paper")
COLOUR = {name: f"#0100{number:02x}" for number, name in enumerate(NAMES)}
SERIES = [COLOUR[f"c{number}"] for number in range(1, 9)]
WIDE_IN, NARROW_IN = 9.6, 4.1  # 72 points each: about as many pixels as they are shown in

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "atoll",  # or ids would be drawn by lot
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the layout is the same everywhere
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOUR["rule"],
    "axes.labelcolor": COLOUR["muted"],
    "axes.labelsize": 8.5,
    "axes.titlesize": 9,
    "axes.titlecolor": COLOUR["ink"],
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": COLOUR["rule"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOUR["rule"],
    "ytick.color": COLOUR["rule"],
    "xtick.labelcolor": COLOUR["muted"],
    "ytick.labelcolor": COLOUR["muted"],
    "legend.frameon": False,
    "legend.labelcolor": COLOUR["ink"],
    "legend.fontsize": 8,
    "legend.handlelength": 1.2,
    "text.color": COLOUR["ink"],
    "lines.linewidth": 1.6,
}
_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_IDS = re.compile(r'(\bid="|url\(#|href="#)')

Draw = Callable[[Figure, bool], None]  # onto a figure; whether it is the narrow one


def picture(name: str, height_in: float, narrow_in: float, draw: Draw) -> str:
    """Both drawings as HTML. `name`: unlike any other of the page; `height_in`, `narrow_in`: their
    heights in inches."""
    wide = _svg(f"{name}-w", WIDE_IN, height_in, draw, False)
    narrow = _svg(f"{name}-n", NARROW_IN, narrow_in, draw, True)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def steps(most: int, *, whole: bool = False) -> MaxNLocator:
    """Ticks at numbers that one counts in: so many steps at most; `whole`: of whole numbers."""
    return MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole)


def label(name: str, narrow: bool) -> str:
    """A site's name beside a picture: a long one gives way in its middle, or no picture is left."""
    most = 18 if narrow else 40
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def timeline(axes: Axes, sites: Sequence[str], seconds: float, narrow: bool) -> None:
    """Axes with a row for each site, the first on top, over the wall time of a log that lasted so
    long. A row's number is its height; times are in the unit of `ops.numbers.time_unit`."""
    step_s, unit = time_unit(seconds)
    axes.set_yticks(range(len(sites)), [label(site, narrow) for site in sites])
    axes.tick_params(axis="y", length=0, labelcolor=COLOUR["ink"])
    axes.set_ylim(len(sites) - 0.4, -0.75)
    axes.set_xlim(0, max(seconds / step_s, 1e-9))
    axes.xaxis.set_major_locator(steps(4 if narrow else 10))
    axes.set_xlabel(f"wall time, {unit}")
    axes.grid(axis="y", visible=False)


def legend(figure: Figure, axes: Axes, narrow: bool) -> None:
    """What the bars of some axes are, above the picture."""
    if axes.get_legend_handles_labels()[0]:
        columns = 2 if narrow else 7
        figure.legend(loc="outside upper left", ncols=columns, handles=axes.containers[:7])


def _svg(name: str, width_in: float, height_in: float, draw: Draw, narrow: bool) -> str:
    with matplotlib.style.context(["default", _STYLE]):  # whatever the reader's own settings are
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        draw(figure, narrow)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=_METADATA)
    return _as_part(out.getvalue(), name)


def _as_part(svg: str, name: str) -> str:
    """Without its prologue and metadata, sized by the page, its ids apart from other pictures'."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 aria-hidden="true"', svg, count=1)
    svg = _IDS.sub(rf"\g<1>{name}-", svg)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    for colour_name, colour in COLOUR.items():
        svg = svg.replace(colour, f"var(--{colour_name})")
    return svg.strip()
