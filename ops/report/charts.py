"""The pictures of a report, each drawn from the embedded numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ops.numbers import compact, thinned, time_unit
from ops.report.canvas import COLOUR, SERIES, label, legend, steps, timeline

MAX_POINTS = 1500  # of a line
MAX_SITES = 40
MAX_LOSS = 50.0  # whose exponential is drawn: beyond, a model has diverged
ENDS = {"lost": "bad", "unfit": "bad", "replaced": "c2", "trainer": "bad"}  # colours by code

Facts = dict[str, Any]


def learning(facts: Facts, by_time: bool) -> Any:
    """Loss and held-out perplexity, over merged tokens or over wall time."""

    def draw(figure: Figure, narrow: bool) -> None:
        grid: Any = figure.subplots(2 if narrow else 1, 1 if narrow else 2)
        loss, perplexity = grid
        step_s, unit = time_unit(facts["seconds"])
        versions = [
            one
            for one in facts["versions"]
            if one["loss"] is not None and math.isfinite(one["loss"])
        ]
        before = facts["lineage"]["tokens"] if facts["lineage"] else 0
        tokens = {one["version"]: before + one["merged_tokens"] for one in facts["versions"]}
        tokens[0] = before

        def where(one: dict[str, Any]) -> float:
            return (one["at_s"] or 0.0) / step_s if by_time else tokens.get(one["version"], before)

        points = thinned([(where(one), one["loss"]) for one in versions], MAX_POINTS)
        _line(loss, points, SERIES[0])
        if facts["baseline"] and not by_time:
            _centralised(loss, perplexity, facts["baseline"])
        _perplexities(perplexity, points, [(where(one), one) for one in facts["evaluations"]])
        for axes, title in ((loss, "training loss, nats a token"), (perplexity, "perplexity")):
            axes.set_title(title)
            merged = "merged tokens" + ", with those before the fork" * bool(before)
            axes.set_xlabel(f"wall time, {unit}" if by_time else merged)
            axes.set_xlim(left=0 if by_time or facts["baseline"] else before)
            if not by_time:
                axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: compact(x)))
            axes.xaxis.set_major_locator(steps(4 if narrow else 6))

    return draw


def _centralised(loss: Axes, perplexity: Axes, baseline: dict[str, Any]) -> None:
    """The baseline's losses in training, and its held-out perplexity at its end."""
    points = [(x, y) for x, y in baseline["curve"] if math.isfinite(y)]
    if points:
        x, y = zip(*thinned(points, MAX_POINTS), strict=True)
        loss.plot(x, y, color=SERIES[2], lw=1.0, alpha=0.8, zorder=1, label="one machine")
        loss.legend(loc="upper right")
    if math.isfinite(baseline["perplexity"]):
        perplexity.plot([baseline["tokens"]], [baseline["perplexity"]], "D", color=SERIES[2],
                        markersize=5, label="one machine, held-out", clip_on=False)  # fmt: skip


def _perplexities(
    axes: Axes, losses: list[tuple[float, float]], evaluated: list[tuple[float, dict[str, Any]]]
) -> None:
    """That of training, e to the loss, as a line; held-out ones as points, by their numbers."""
    trained = [(x, math.exp(min(loss, MAX_LOSS))) for x, loss in losses]
    if trained:
        _line(axes, trained, SERIES[0], label="training", lw=1.2)
    held = [(x, one["perplexity"]) for x, one in evaluated if math.isfinite(one["perplexity"])]
    if held:
        axes.plot(
            *zip(*held, strict=True),
            "o",
            color=SERIES[1],
            markersize=5,
            label="held-out",
            clip_on=False,
        )
    for x, y in held if len(held) <= 8 else held[-1:]:
        late = x > 0.5 * max(x for x, _ in [*trained, *held])
        at, side = ((-7, 4), "right") if late else ((7, -3), "left")
        axes.annotate(
            compact(y), (x, y), xytext=at, textcoords="offset points", ha=side, fontsize=8
        )
    values = [y for _, y in trained + held]
    if not values:
        _line(axes, [], SERIES[0])
        return
    if max(values) > 4 * min(values) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: compact(y)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper right")


def _line(axes: Axes, points: Sequence[tuple[float, float]], colour: str, **style: Any) -> None:
    if not points:
        axes.text(0.5, 0.5, "none yet", transform=axes.transAxes, ha="center", va="center")
        return
    marker = "o" if len(points) <= 40 else None
    axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3.5, **style)


def shown_sites(facts: Facts) -> list[str]:
    """The sites that pictures have room for: those that merged most, by name."""
    most = sorted(facts["sites"], key=lambda one: (-one["merged_tokens"], one["site"]))
    return sorted(one["site"] for one in most[:MAX_SITES])


def presence(facts: Facts) -> Any:
    """Who was there when, when it trained, and why it left; pauses of the run in grey."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        step_s, _ = time_unit(facts["seconds"])
        sites = shown_sites(facts)
        row = {site: number for number, site in enumerate(sites)}
        for pause in facts["pauses"]:
            until = facts["ran_until_s"] if pause["until_s"] is None else pause["until_s"]
            axes.axvspan(pause["from_s"] / step_s, until / step_s, color=COLOUR["rule"], lw=0)
        for life in facts["lives"]:
            if life["site"] in row:
                _life(axes, life, row[life["site"]], facts["ran_until_s"], step_s)
        for site in sites:
            spells = facts["working"].get(site, [])
            bars = [(a / step_s, max((b - a) / step_s, 0.0)) for a, b in spells]
            axes.broken_barh(bars, (row[site] - 0.22, 0.44), color=SERIES[0], lw=0)
        for term in facts["terms"][1:]:
            axes.axvline(term["at_s"] / step_s, color=COLOUR["c4"], lw=0.9, ls=":")
        timeline(axes, sites, facts["seconds"], narrow)

    return draw


def _life(axes: Axes, life: dict[str, Any], row: int, end_s: float, step_s: float) -> None:
    gone = life["left_s"] is not None
    left = (life["left_s"] if gone else end_s) / step_s
    came = life["came_s"] / step_s
    axes.broken_barh([(came, left - came)], (row - 0.3, 0.6), color=SERIES[0], alpha=0.22, lw=0)
    axes.plot([came, came], [row - 0.3, row + 0.3], color=SERIES[0], lw=1.2)
    if gone and life["code"] != "finished":
        colour = COLOUR[ENDS.get(life["code"], "muted")]
        axes.plot([left], [row], "X", color=colour, markersize=9, markeredgecolor=COLOUR["paper"])
        right = left * step_s > end_s * 0.85
        axes.annotate(
            life["code"],
            (left, row - 0.34),
            xytext=(-2 if right else 2, 0),
            textcoords="offset points",
            fontsize=7.5,
            color=colour,
            ha="right" if right else "left",
            va="bottom",
        )


def outcomes(facts: Facts) -> Any:
    """What became of the blocks that each site was granted."""
    parts = (("merged", "c3"), ("stolen before a start", "c1"), ("taken back", "bad"),
             ("refused or under way", "muted"))  # fmt: skip

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        sites = _of_shown(facts)
        rows = range(len(sites))
        base = [0] * len(sites)
        for number, (name, colour) in enumerate(parts):
            counts = [_outcome(one)[number] for one in sites]
            axes.barh(rows, counts, 0.62, base, color=COLOUR[colour], label=name, lw=0)
            base = [low + more for low, more in zip(base, counts, strict=True)]
        _by_site(axes, [label(one["site"], narrow) for one in sites])
        axes.set_xlim(0, 1.04 * max([*base, 1]))
        axes.set_xlabel("blocks granted")
        axes.xaxis.set_major_locator(steps(4 if narrow else 8, whole=True))
        legend(figure, axes, narrow)

    return draw


def _outcome(one: dict[str, Any]) -> tuple[int, int, int, int]:
    taken = sum(one["reclaimed_blocks"].values())
    return one["merged_blocks"], one["stolen_blocks"], taken, one["other_blocks"]


def goodput(facts: Facts) -> Any:
    """Merged tokens for each second that a site was there."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        sites = _of_shown(facts)
        rates = [one["goodput_tokens_per_s"] for one in sites]
        bars = axes.barh(range(len(sites)), rates, 0.62, color=SERIES[2], lw=0)
        axes.bar_label(bars, [f"{compact(rate)}" for rate in rates], padding=4, fontsize=8)
        axes.set_xlim(0, max([*rates, 1e-9]) * 1.12)
        _by_site(axes, [label(one["site"], narrow) for one in sites])
        axes.set_xlabel("merged tokens a second of presence")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: compact(x)))
        axes.xaxis.set_major_locator(steps(4 if narrow else 8))

    return draw


def _of_shown(facts: Facts) -> list[dict[str, Any]]:
    names = set(shown_sites(facts))
    return [one for one in facts["sites"] if one["site"] in names]


def _by_site(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=COLOUR["ink"])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
