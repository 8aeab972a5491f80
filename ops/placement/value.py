"""What a job is worth: node-seconds of work that it is expected to add before the horizon.

A site works with at most its full shape's nodes at a time; what is granted beyond waits at the door
(R11) and adds nothing. `Cover` holds, at points of time up to the horizon, how the number of our
nodes there is distributed, jobs taken as independent; a job's worth is what it adds to the mean of
min(nodes, full). A job stands for the chain it begins: where it has ended, a successor queued at
its start runs a share T / (T + E[(W - T)+]) of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from ops.placement.shapes import Shape, WaitEstimate

NUM_POINTS = 24
NUM_DRAWS = 12  # quantiles that stand for a distribution where a mean is taken
_DRAWS = tuple((k + 0.5) / NUM_DRAWS for k in range(NUM_DRAWS))


@dataclass(frozen=True, slots=True)
class Worth:
    """`gain`: node-seconds that a chain of it adds; `own_gain`, `granted`: what the job itself
    adds, and the node-seconds it is given, before the horizon; `error`: the standard error of the
    gain as far as it comes from how few starts the estimate rests on."""

    gain: float
    own_gain: float
    granted: float
    error: float

    @property
    def use(self) -> float:
        """Which share of what the job itself is given does work."""
        return self.own_gain / self.granted if self.granted > 0 else 0.0


class Cover:
    """Our nodes at one site from now to the horizon, as far as they are expected."""

    def __init__(self, full: int, horizon_s: float) -> None:
        self.full, self.horizon_s = full, horizon_s
        step = horizon_s / NUM_POINTS
        self.step_s = step
        self.points = [(k + 0.5) * step for k in range(NUM_POINTS)]
        self._nodes: list[dict[int, float]] = [{0: 1.0} for _ in self.points]
        self._room: dict[int, list[float]] = {}

    def add_running(self, nodes: int, left_s: float) -> None:
        """A job that runs, and ends in `left_s`."""
        self._add(nodes, [float(x < left_s) for x in self.points])

    def add_pending(self, shape: Shape, wait: WaitEstimate) -> None:
        """A job that waits, itself alone."""
        self._add(shape.nodes, self._runs(shape, wait))

    def worth(self, shape: Shape, wait: WaitEstimate, copies: int, start_up_s: float) -> Worth:
        """What so many independent jobs of that shape would add to what is there."""
        room = self._room_for(shape.nodes * copies)
        alone = self._runs(shape, wait)
        started = [wait.p(x - start_up_s) for x in self.points]
        kept = chained(shape, wait)
        chain = [
            one + kept * max(0.0, begun - one) for one, begun in zip(alone, started, strict=True)
        ]
        step, nodes = self.step_s, shape.nodes * copies
        lost = nodes * start_up_s * wait.p(self.horizon_s)
        gain = step * sum(p * r for p, r in zip(chain, room, strict=True))
        own = step * sum(p * r for p, r in zip(alone, room, strict=True)) - lost
        granted = step * nodes * sum(alone)
        return Worth(gain - lost, max(0.0, own), granted, self._error(wait, nodes))

    def mean(self) -> float:
        """Node-seconds of work expected from what is there."""
        return self.step_s * sum(
            sum(min(n, self.full) * p for n, p in at.items()) for at in self._nodes
        )

    def _error(self, wait: WaitEstimate, nodes: int) -> float:
        """A job starts that much later or sooner: so much less or more of it before the horizon."""
        left = [max(0.0, self.horizon_s - wait.q(p)) for p in _DRAWS]
        mean = sum(left) / NUM_DRAWS
        spread = sqrt(sum((one - mean) ** 2 for one in left) / NUM_DRAWS)
        return nodes * spread / sqrt(wait.num_observed + 1)

    def _runs(self, shape: Shape, wait: WaitEstimate) -> list[float]:
        walltime_s = shape.walltime_s
        return [max(0.0, wait.p(x) - wait.p(x - walltime_s)) for x in self.points]

    def _room_for(self, nodes: int) -> list[float]:
        """At each point, how many of so many nodes more would work, in the mean."""
        if nodes not in self._room:
            self._room[nodes] = [
                sum(p * min(nodes, self.full - n) for n, p in at.items()) for at in self._nodes
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
                after[there] = after.get(there, 0.0) + chance * (1 - p)
                more = min(self.full, there + nodes)
                after[more] = after.get(more, 0.0) + chance * p
            self._nodes[k] = after


def chained(shape: Shape, wait: WaitEstimate) -> float:
    """The share of time in which a chain runs whose successors are queued at a start."""
    gap = sum(max(0.0, min(wait.q(p), 1e9) - shape.walltime_s) for p in _DRAWS) / NUM_DRAWS
    return shape.walltime_s / (shape.walltime_s + gap)
