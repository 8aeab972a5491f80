"""What a benchmark found: medians of several runs, beside a peer or a limit and the target."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Progress = Callable[[str, int, int], None]  # what, parts done, parts in all


@dataclass(frozen=True, slots=True)
class Target:
    """`bound` is met by `of` ("value" or "ratio") at least or at most; text as in "≥ 0.4×"."""

    bound: float
    of: str
    at_least: bool

    def met(self, found: float) -> bool:
        """Whether a value or ratio reaches the target; compared unrounded."""
        return found >= self.bound if self.at_least else found <= self.bound

    def text(self, unit: str) -> str:
        """The target as a person writes it."""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g}{'×' if self.of == 'ratio' else f' {unit}'}"


def at_least(bound: float, of: str = "value") -> Target:
    """More is better."""
    return Target(bound, of, at_least=True)


def at_most(bound: float, of: str = "value") -> Target:
    """Less is better."""
    return Target(bound, of, at_least=False)


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a benchmark. `against` names the peer or limit, measured in the same run or
    given; `ratio` = value / against_value; both None where there is neither peer nor limit."""

    what: str
    value: float
    unit: str
    against: str | None
    against_value: float | None
    target: Target | None

    @property
    def ratio(self) -> float | None:
        """value / against_value; None where there is nothing to compare with."""
        return self.value / self.against_value if self.against_value else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        found = self.ratio if self.target.of == "ratio" else self.value
        return found is not None and self.target.met(found)

    def as_json(self, *, judged: bool = True) -> dict[str, Any]:
        """The stable form (docs/reference.md); without a verdict unless it is `judged`."""
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "against": self.against,
            "against_value": self.against_value,
            "ratio": self.ratio,
            "target": self.target.text(self.unit) if self.target else None,
            "met": self.met if judged else None,
        }


def measured(
    what: str,
    values: Sequence[float],
    unit: str,
    *,
    against: str | None = None,
    against_values: Sequence[float] | float | None = None,
    target: Target | None = None,
) -> Measure:
    """A measure from the values of each run: medians of both sides. Raises ValueError without a
    value, or for a target on a ratio that has no other side."""
    if not values:
        raise ValueError(f"{what}: no run gave a value")
    if target is not None and target.of == "ratio" and against_values is None:
        raise ValueError(f"{what}: a target on a ratio needs what it is compared with")
    if isinstance(against_values, int | float):
        against_values = [against_values]
    other = median(against_values) if against_values else None
    return Measure(what, median(values), unit, against, other, target)


@dataclass(frozen=True, slots=True)
class Report:
    """All that one benchmark found, with the number of runs behind each median. `quick`: once and
    short, to see that it works; what it shows of speed is no verdict, so none is given."""

    name: str
    measures: tuple[Measure, ...]
    runs: int
    notes: tuple[str, ...] = ()
    quick: bool = False

    def as_json(self) -> dict[str, Any]:
        """The stable form (docs/reference.md)."""
        return {
            "name": self.name,
            "machine": machine(),
            "measures": [one.as_json(judged=not self.quick) for one in self.measures],
            "runs": self.runs,
            "notes": list(self.notes),
            "quick": self.quick,
        }


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name":
                return name.strip()
    return platform.processor() or platform.machine()
