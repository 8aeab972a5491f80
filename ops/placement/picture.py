"""Pictures of placement as SVG: what each policy took, and how well bounds cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ops.placement.study import Result

_STYLE = {"svg.hashsalt": "atoll", "svg.fonttype": "none", "font.size": 9}


def of_study(results: Sequence[Result], title: str, path: Path) -> None:
    """The distribution of the time to the target, a curve a policy: the share of runs that had
    reached it. Raises ModuleNotFoundError without the extra `report`, OSError."""

    def draw(axes: Axes) -> None:
        for number, result in enumerate(results):
            hours = sorted(time_s / 3600 for time_s in result.times_s)
            shares = [(k + 1) / len(hours) for k in range(len(hours))]
            style = "--" if result.policy.startswith("wait-for-all") else "-"
            axes.step(hours, shares, style, where="post", label=result.policy, color=f"C{number}")
        axes.set(xlabel="hours to the target", ylabel="share of runs", ylim=(0, 1), title=title)

    _save(draw, path)


def of_calibration(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """The share of starts that came no later than the bound, over the level of the bound; on the
    diagonal it is what it says. Raises as `of_study`."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], ":", color="grey", label="as stated")
        for name, points in curves.items():
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", ms=3, label=name)
        axes.set(
            xlabel="level of the bound",
            ylabel="share of starts within it",
            xlim=(0, 1),
            ylim=(0, 1),
            title="Calibration, out of sample",
        )

    _save(draw, path)


def _save(draw: Any, path: Path) -> None:
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})
