"""What a job is worth: node-seconds of work that it is expected to add before the horizon.

A site works with at most its full shape's nodes at a time; what is granted beyond waits at the door
(R11) and adds nothing. `Cover` holds, at points of time up to the horizon, how the number of our
nodes there is distributed, jobs taken as independent; a job's worth is what it adds to the mean of
min(nodes, full). Behind its end a share of the site's time is covered by successors, whatever the
shape: T / (T + E[(W - T)+]) of the full shape, whose successor is queued at its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt
from operator import mul

from ops.placement.shapes import Shape, WaitEstimate

NUM_POINTS = 12
NUM_DRAWS = 8  # quantiles that stand for a distribution where a mean is taken
_DRAWS = tuple((k + 0.5) / NUM_DRAWS for k in range(NUM_DRAWS))


@dataclass(frozen=True, slots=True)
class Worth:
    """`gain`: node-seconds that it adds, with those behind its end; `own`, `granted`: node-seconds
    that the job itself adds and is given, before the horizon; `error`: the standard error of the
    gain, as far as it comes from how few starts the estimate rests on."""

    gain: float
    own: float
    granted: float
    error: float

    @property
    def use(self) -> float:
        """Which share of what the job itself is given does work."""
        return self.own / self.granted if self.granted > 0 else 0.0


class Chance:
    """When a job of a shape runs, if it is asked for now: in each step of time how probable that is
    in the mean (`alone`), and with what comes behind its end (`chain`)."""

    __slots__ = ("alone", "chain", "granted", "lost", "shape", "spread")

    def __init__(
        self,
        points: Sequence[float],
        shape: Shape,
        wait: WaitEstimate,
        *,
        start_up_s: float = 0.0,
        kept: float = 0.0,
    ) -> None:
        """`kept`: the share of time that is covered behind a job's end."""
        step = points[0] * 2
        edges = [x - points[0] for x in points]
        edges.append(points[-1] + points[0])
        mass = _Mass(wait)
        sums = mass.until(edges)
        ended = mass.until([x - shape.walltime_s for x in edges])
        begun = [(b - a) / step for a, b in pairwise(sums)]
        over = [(b - a) / step for a, b in pairwise(ended)]
        self.shape = shape
        self.alone = [b - o if b > o else 0.0 for b, o in zip(begun, over, strict=True)]
        self.chain = [
            a + kept * (b - a) if b > a else a for a, b in zip(self.alone, begun, strict=True)
        ]
        self.granted = step * sum(self.alone)  # seconds, of one node
        self.lost = start_up_s * begun[-1]
        horizon_s = edges[-1]
        left = [horizon_s - w if w < horizon_s else 0.0 for w in map(wait.q, _DRAWS)]
        mean = sum(left) / NUM_DRAWS
        variance = sum([(one - mean) ** 2 for one in left]) / NUM_DRAWS
        self.spread = sqrt(variance / (wait.num_observed + 1))


class _Mass:
    """The integral of a wait's distribution function, exactly: a job may be shorter than a step."""

    __slots__ = ("_levels", "_sums", "_waits")

    def __init__(self, wait: WaitEstimate) -> None:
        self._waits, self._levels = wait.waits_s, wait.levels
        total, self._sums = 0.0, [0.0]
        for (a, b), (p, q) in zip(pairwise(self._waits), pairwise(self._levels), strict=True):
            total += (b - a) * (p + q) / 2 if b < inf else 0.0
            self._sums.append(total)

    def until(self, times_s: Sequence[float]) -> list[float]:
        """The integral from 0 to each of some rising times."""
        waits, levels, sums = self._waits, self._levels, self._sums
        last, k, found = len(waits) - 1, -1, []
        for time_s in times_s:
            while k < last and waits[k + 1] <= time_s:
                k += 1
            if k < 0:
                found.append(0.0)
                continue
            passed = time_s - waits[k]
            if k == last:
                found.append(sums[k] + passed)
                continue
            low, width = levels[k], waits[k + 1] - waits[k]
            slope = (levels[k + 1] - low) / width if width < inf else 0.0
            found.append(sums[k] + passed * (low + slope * passed / 2))
        return found


class Cover:
    """Our nodes at one site from now to the horizon, as far as they are expected."""

    def __init__(self, full: int, horizon_s: float) -> None:
        self.full = full
        self.step_s = horizon_s / NUM_POINTS
        self.points = [(k + 0.5) * self.step_s for k in range(NUM_POINTS)]
        self._nodes: list[dict[int, float]] = [{0: 1.0} for _ in self.points]
        self._room: dict[int, list[float]] = {}

    def add_running(self, nodes: int, left_s: float) -> None:
        """A job that runs, and ends in `left_s`."""
        starts = (k * self.step_s for k in range(NUM_POINTS))
        self._add(nodes, [min(1.0, max(0.0, left_s - a) / self.step_s) for a in starts])

    def add(self, chance: Chance) -> None:
        """A job that waits, itself alone."""
        self._add(chance.shape.nodes, chance.alone)

    def worth(self, chance: Chance, copies: int = 1) -> Worth:
        """What so many independent jobs would add to what is there."""
        nodes = chance.shape.nodes * copies
        room = self._room_for(nodes)
        lost = nodes * chance.lost
        gain = self.step_s * sum(map(mul, chance.chain, room)) - lost
        own = self.step_s * sum(map(mul, chance.alone, room)) - lost
        return Worth(gain, max(0.0, own), nodes * chance.granted, nodes * chance.spread)

    def _room_for(self, nodes: int) -> list[float]:
        """At each point, how many of so many nodes more would work, in the mean."""
        if nodes not in self._room:
            full = self.full
            self._room[nodes] = [
                sum([p * min(nodes, full - n) for n, p in at.items()]) for at in self._nodes
            ]
        return self._room[nodes]

    def _add(self, nodes: int, probable: Sequence[float]) -> None:
        """Convolve with one job more; what is beyond the full shape is all the same."""
        self._room.clear()
        for k, p in enumerate(probable):
            if p <= 0:
                continue
            after: dict[int, float] = {}
            for there, chance in self._nodes[k].items():
                if p < 1:
                    after[there] = after.get(there, 0.0) + chance * (1 - p)
                more = min(self.full, there + nodes)
                after[more] = after.get(more, 0.0) + chance * p
            self._nodes[k] = after


def chained(shape: Shape, wait: WaitEstimate) -> float:
    """The share of time in which a chain runs whose successors are queued at a start."""
    gap = sum(max(0.0, min(wait.q(p), 1e9) - shape.walltime_s) for p in _DRAWS) / NUM_DRAWS
    return shape.walltime_s / (shape.walltime_s + gap)
