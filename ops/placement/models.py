"""Where waits come from in the study: centres whose queues are drawn, copied from a trace, or
lived.

A centre answers in the same way whatever stands behind it: `submit`, `withdraw`, `reshape`, and who
starts when. In a `DrawnCentre` the n-th job submitted has its own random number, which depends on
the seed, the centre and n alone: policies that submit the n-th job at the same time wait the same
(common random numbers). A `LivedCentre` is a machine with its background, the same for all
policies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from math import exp, inf, log
from random import Random
from typing import Protocol

from ops.placement import backfill
from ops.placement.machine import Machine
from ops.placement.shapes import QueueSnapshot, Shape
from ops.placement.traces import Waited

# (random, submitted at, shape) -> wait in seconds
Draw = Callable[[Random, float, Shape], float]
ORACLE_HORIZON_S = 30 * 86400.0  # a job that has not started by then counts as never


class Centre(Protocol):
    """One queue at one centre."""

    @property
    def next_s(self) -> float:
        """When something happens there by itself; inf: nothing will."""
        ...

    def step(self) -> list[Hashable]:
        """Do what happens at `next_s`; the jobs of ours that start then."""
        ...

    def submit(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Queue a job; which of ours start at once by that."""
        ...

    def withdraw(self, now_s: float, key: Hashable) -> list[Hashable]:
        """Cancel or end a job; which of ours start at once by that."""
        ...

    def reshape(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Change a pending job, which keeps its age; which of ours start at once by that."""
        ...

    def extend(self, key: Hashable, end_by_s: float) -> None:
        """A running job may run until then."""
        ...

    def probe(self, now_s: float, shape: Shape) -> float | None:
        """What `sbatch --test-only` would say, in seconds from now; None: nothing."""
        ...

    def truth(self, now_s: float, shape: Shape, ahead: int = 0) -> float:
        """What a job of that shape, submitted now behind `ahead` other new ones, will wait."""
        ...

    def left(self, now_s: float, key: Hashable) -> float:
        """What a job that waits will still wait, in truth."""
        ...

    def snapshot(self, now_s: float) -> QueueSnapshot | None:
        """The queue as users see it; None where there is none to see."""
        ...


class DrawnCentre:
    """Waits drawn one by one, from a distribution or out of a trace."""

    def __init__(self, draw: Draw, seed: str, late: Sequence[float] = ()) -> None:
        """`late`: how much later than probed jobs started somewhere (seconds, may be negative); a
        probe is the true wait less one of these, and never less than 0."""
        self._draw, self._seed, self._late = draw, seed, late
        self._num = 0
        self._pending: dict[Hashable, tuple[float, float, int]] = {}  # start, submitted, number

    @property
    def next_s(self) -> float:
        """The next start of a job of ours."""
        return min((start for start, _, _ in self._pending.values()), default=inf)

    def step(self) -> list[Hashable]:
        """The jobs that start next."""
        at_s = self.next_s
        started = [key for key, (start, _, _) in self._pending.items() if start <= at_s]
        for key in started:
            del self._pending[key]
        return started

    def submit(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Queue a job with the next number."""
        self._pending[key] = (now_s + self._wait(self._num, now_s, shape), now_s, self._num)
        self._num += 1
        return []

    def withdraw(self, now_s: float, key: Hashable) -> list[Hashable]:
        """Forget a job."""
        self._pending.pop(key, None)
        return []

    def reshape(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """The same number gives another wait for another shape, not over before now."""
        if key in self._pending:
            _, submitted_s, number = self._pending[key]
            start_s = max(now_s, submitted_s + self._wait(number, submitted_s, shape))
            self._pending[key] = (start_s, submitted_s, number)
        return []

    def extend(self, key: Hashable, end_by_s: float) -> None:
        """Nobody else is here to mind."""

    def probe(self, now_s: float, shape: Shape) -> float | None:
        """The truth, less the error of a pair drawn for this number."""
        if not self._late:
            return None
        error = Random(f"probe/{self._seed}/{self._num}").choice(self._late)
        return max(0.0, self.truth(now_s, shape) - error)

    def truth(self, now_s: float, shape: Shape, ahead: int = 0) -> float:
        """What the next submission will wait."""
        return self._wait(self._num + ahead, now_s, shape)

    def left(self, now_s: float, key: Hashable) -> float:
        """As drawn at its submission."""
        return self._pending[key][0] - now_s

    def snapshot(self, now_s: float) -> QueueSnapshot | None:
        """There is no queue, only waits."""
        return None

    def past(self, before_s: float, shape: Shape, number: int) -> tuple[float | None, float]:
        """(probe, wait) of an earlier job, which belongs to what is known of the centre."""
        random = Random(f"past/{self._seed}/{number}")
        wait_s = self._draw(random, before_s, shape)
        return (max(0.0, wait_s - random.choice(self._late)) if self._late else None), wait_s

    def _wait(self, number: int, now_s: float, shape: Shape) -> float:
        return self._draw(Random(f"{self._seed}/{number}"), now_s, shape)


class LivedCentre:
    """A machine with its background, in which our jobs wait as any other."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def next_s(self) -> float:
        """The machine's next event."""
        return self.machine.next_s

    def step(self) -> list[Hashable]:
        """The machine's next event."""
        return self.machine.step()

    def submit(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Into the machine's queue."""
        return self.machine.submit(now_s, key, shape)

    def withdraw(self, now_s: float, key: Hashable) -> list[Hashable]:
        """Out of the machine."""
        return self.machine.withdraw(now_s, key)

    def reshape(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """In its place in the queue."""
        return self.machine.reshape(now_s, key, shape)

    def extend(self, key: Hashable, end_by_s: float) -> None:
        """For jobs that are held."""
        self.machine.extend(key, end_by_s)

    def probe(self, now_s: float, shape: Shape) -> float | None:
        """By Slurm's rule, on the queue as it is."""
        return backfill.probed(self.machine.snapshot(now_s), shape)

    def truth(self, now_s: float, shape: Shape, ahead: int = 0) -> float:
        """By letting a copy live on until such a job starts."""
        other, probe = self.machine.copy(), object()
        if probe in other.submit(now_s, probe, shape):
            return 0.0
        return _until_it_starts(other, now_s, probe)

    def left(self, now_s: float, key: Hashable) -> float:
        """By letting a copy live on until it starts."""
        return _until_it_starts(self.machine.copy(), now_s, key)

    def snapshot(self, now_s: float) -> QueueSnapshot | None:
        """The queue as its users see it."""
        return self.machine.snapshot(now_s)


def _until_it_starts(machine: Machine, now_s: float, key: Hashable) -> float:
    while machine.next_s < now_s + ORACLE_HORIZON_S:
        if key in machine.step():
            return machine.now_s - now_s
    return inf


def exponential(mean_s: float) -> Draw:
    """Waits without memory."""
    return lambda random, now_s, shape: random.expovariate(1.0) * mean_s


def lognormal(mean_s: float, sigma: float) -> Draw:
    """Heavy-tailed waits with that mean; `sigma` is the standard deviation of their logarithm."""
    mu = log(mean_s) - sigma * sigma / 2
    return lambda random, now_s, shape: exp(random.gauss(mu, sigma))


class Bootstrapped:
    """Waits of the trace: that of a job with a similar limit that was submitted about then.

    Of the `NEAR` jobs of that class of limits nearest in submission, one is drawn by its weight.
    The trace is repeated when it ends. It knows no machine size: the number of nodes plays no part.
    """

    NEAR = 60
    CLASSES_S = (3600.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, inf)

    def __init__(self, jobs: Sequence[Waited]) -> None:
        self._classes: list[tuple[list[float], list[Waited]]] = []
        low = 0.0
        for high in self.CLASSES_S:
            inside = [job for job in jobs if low < job.limit_s <= high]
            self._classes.append(([job.submit_s for job in inside], inside))
            low = high
        self.start_s, self.end_s = jobs[0].submit_s, jobs[-1].submit_s

    def draw(self, offset_s: float) -> Draw:
        """A centre that is at `offset_s` of the trace when the study's clock says 0."""
        return lambda random, now_s, shape: self._one(random, offset_s + now_s, shape)

    def _one(self, random: Random, at_s: float, shape: Shape) -> float:
        span = self.end_s - self.start_s
        at_s = self.start_s + at_s % span
        which = next(k for k, high in enumerate(self.CLASSES_S) if shape.walltime_s <= high)
        times, jobs = self._classes[which]
        first = min(max(0, bisect_left(times, at_s) - self.NEAR // 2), len(jobs) - self.NEAR)
        near = jobs[max(0, first) : max(0, first) + self.NEAR]
        return random.choices(near, [job.weight for job in near])[0].wait_s
