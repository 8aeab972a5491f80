"""Numbers for people: short, with their unit, the same wherever they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (3 * 60, 60, "minutes"))


def compact(value: float | None) -> str:
    """Three digits that count: 12.3k, 4.56M; – where there is none."""
    if value is None:
        return "–"
    for factor, sign in _THOUSANDS:
        if abs(value) >= 0.9995 * factor:
            return f"{value / factor:.3g}{sign}"
    return f"{value:.3g}"


def size(num_bytes: float | None) -> str:
    """Bytes, in powers of ten as links and disks are sold: 1.2 MB."""
    if num_bytes is None:
        return "–"
    for factor, sign in _THOUSANDS:
        if num_bytes >= 0.9995 * factor:
            return f"{num_bytes / factor:.3g} {sign}B"
    return f"{num_bytes:.0f} B"


def share(value: float | None) -> str:
    """A share as per cent: 12.3 %; – where there is none."""
    return "–" if value is None else f"{100 * value:.3g} %"


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit for an axis over so long a time: its seconds and its name."""
    for at_least, unit_s, name in _TIMES:
        if seconds >= at_least:
            return unit_s, name
    return 1.0, "seconds"


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most so many of the points, evenly, the last one always among them."""
    if len(points) <= most:
        return list(points)
    step = len(points) / most
    return [points[int((number + 1) * step) - 1] for number in range(most)]
