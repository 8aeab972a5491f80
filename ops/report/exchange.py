"""The pictures of the exchange, by round: seconds of its phases, and bytes that were stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ops.numbers import size
from ops.report.canvas import COLOUR, SERIES, legend, steps

MAX_BARS = 60  # of rounds; more are put together
EXCHANGE = ("encode", "upload", "wait", "merge", "download", "apply", "snapshot")

Facts = dict[str, Any]


def overhead(facts: Facts) -> Any:
    """Seconds of the exchange by round and phase; below, the share of time that trainers stood."""

    def draw(figure: Figure, narrow: bool) -> None:
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1.3))
        rounds = [one for one in facts["rounds"] if one["phases"]]
        groups = _groups(rounds)
        at = [sum(one["round"] for one in group) / len(group) for group in groups]
        width = 0.8 * (at[1] - at[0] if len(at) > 1 else 1.0)
        base = [0.0] * len(groups)
        for number, phase in enumerate(EXCHANGE):
            means = [_mean([one["phases"][phase] for one in group]) for group in groups]
            above.bar(at, means, width, base, color=SERIES[number], label=phase, lw=0)
            base = [low + more for low, more in zip(base, means, strict=True)]
        below.bar(at, [100 * _mean([one["stall"] or 0.0 for one in group]) for group in groups],
                  width, color=COLOUR["bad"], lw=0)  # fmt: skip
        above.set_title("mean seconds of a site, by phase")
        below.set_title("trainers stood still, % of wall time")
        below.set_xlabel("round")
        _by_round(below, at, width, narrow)
        for axes in (above, below):
            axes.grid(axis="x", visible=False)
        legend(figure, above, narrow)

    return draw


def stored(facts: Facts) -> Any:
    """Bytes that each round put into the store."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        groups = _groups([one for one in facts["rounds"] if one["committed_s"] is not None])
        at = [sum(one["round"] for one in group) / len(group) for group in groups]
        width = 0.8 * (at[1] - at[0] if len(at) > 1 else 1.0)
        deltas = [_mean([one["delta_bytes"] for one in group]) for group in groups]
        updates = [_mean([one["update_bytes"] for one in group]) for group in groups]
        axes.bar(at, deltas, width, color=SERIES[0], label="deltas of sites", lw=0)
        axes.bar(at, updates, width, deltas, color=SERIES[1], label="merged update", lw=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: size(y)))
        axes.set_xlabel("round")
        _by_round(axes, at, width, narrow)
        axes.grid(axis="x", visible=False)
        legend(figure, axes, narrow)

    return draw


def _by_round(axes: Axes, at: Sequence[float], width: float, narrow: bool) -> None:
    axes.xaxis.set_major_locator(steps(5 if narrow else 10, whole=True))
    axes.set_xlim(at[0] - width, at[-1] + width)


def _groups(rounds: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rounds by bars: one each, or several where there are many."""
    size_ = max(1, -(-len(rounds) // MAX_BARS))
    return [rounds[first : first + size_] for first in range(0, len(rounds), size_)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
