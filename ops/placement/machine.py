"""A machine with a queue, through time: the backfill of `backfill.place` at every event.

Background jobs come from a trace and last as long as they did; jobs of ours are put into the same
queue, last in it, and last until their limit or until they are withdrawn. So our own jobs change
when others run, and the other way round.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from ops.placement.backfill import Profile, place
from ops.placement.shapes import PendingJob, QueueSnapshot, RunningJob, Shape


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace; `wait_s` is what it really waited there."""

    submit_s: float
    nodes: int
    limit_s: float
    run_s: float
    wait_s: float


@dataclass(slots=True)
class _Waiting:
    number: int  # the order of submission, which is the order of priority
    nodes: int
    limit_s: float
    run_s: float
    ours: Hashable | None


class Machine:
    """One partition. Call `step` while `next_s` is what comes first in the world; between events
    `submit`, `withdraw` and `reshape` act at the time they are given."""

    def __init__(
        self, nodes: int, background: Sequence[TraceJob], start_s: float, depth: int = 1
    ) -> None:
        """The state at `start_s` is that of the trace; what comes later is scheduled here."""
        self.nodes, self.free, self.depth, self.now_s = nodes, nodes, depth, start_s
        self._jobs = background
        self._waiting: list[_Waiting] = []
        self._limits: list[tuple[float, int, int]] = []  # (end by, number, nodes), sorted
        self._ends: list[tuple[float, int]] = []  # a heap of (real end, number)
        self._running: dict[int, tuple[float, int, Hashable | None]] = {}
        self._ours: dict[Hashable, int] = {}
        self._number = 0
        self._next = 0
        self._begin(start_s)

    def copy(self) -> Machine:
        """Another machine in the same state, with the same future."""
        other = object.__new__(Machine)
        other.__dict__.update(self.__dict__)
        other._waiting = [
            _Waiting(one.number, one.nodes, one.limit_s, one.run_s, one.ours)
            for one in self._waiting
        ]
        other._limits, other._ends = self._limits[:], self._ends[:]
        other._running, other._ours = dict(self._running), dict(self._ours)
        return other

    @property
    def next_s(self) -> float:
        """When something happens by itself: a job of the trace comes, or one ends; else inf."""
        coming = self._jobs[self._next].submit_s if self._next < len(self._jobs) else inf
        return min(coming, self._ends[0][0]) if self._ends else coming

    def step(self) -> list[Hashable]:
        """Do what happens at `next_s`; the jobs of ours that start then."""
        at_s = self.now_s = self.next_s
        changed = False
        while self._ends and self._ends[0][0] <= at_s:
            self._end(heappop(self._ends)[1])
            changed = True
        while self._next < len(self._jobs) and self._jobs[self._next].submit_s <= at_s:
            job = self._jobs[self._next]
            self._queue(job.nodes, job.limit_s, job.run_s, None)
            self._next += 1
            changed = changed or job.nodes <= self.free
        return self._schedule() if changed else []  # who does not fit changes nothing for others

    def submit(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Queue a job of ours, last; which of ours start by that."""
        self.now_s = now_s
        self._ours[key] = self._number
        self._queue(shape.nodes, shape.walltime_s, inf, key)
        return self._schedule()

    def withdraw(self, now_s: float, key: Hashable) -> list[Hashable]:
        """End or cancel a job of ours; which of ours start by that."""
        self.now_s = now_s
        number = self._ours.pop(key)
        if number in self._running:
            self._end(number)
        else:
            self._waiting = [one for one in self._waiting if one.number != number]
        return self._schedule()

    def reshape(self, now_s: float, key: Hashable, shape: Shape) -> list[Hashable]:
        """Change a pending job of ours, which keeps its place; which of ours start by that."""
        self.now_s = now_s
        for one in self._waiting:
            if one.ours == key:
                one.nodes, one.limit_s = shape.nodes, shape.walltime_s
        return self._schedule()

    def extend(self, key: Hashable, end_by_s: float) -> None:
        """A running job of ours may run until then (one that is held until all sites are there)."""
        number = self._ours[key]
        old_s, nodes, _ = self._running[number]
        self._limits.remove((old_s, number, nodes))
        insort(self._limits, (end_by_s, number, nodes))
        self._running[number] = (end_by_s, nodes, key)

    def snapshot(self, now_s: float) -> QueueSnapshot:
        """The queue as its users see it: limits, not real ends."""
        return QueueSnapshot(
            now_s,
            self.nodes,
            self.free,
            0,
            tuple(
                RunningJob(n, end_s, ours=self._running[number][2] is not None)
                for end_s, number, n in self._limits
            ),
            tuple(
                PendingJob(
                    one.nodes,
                    one.limit_s,
                    job_id=None if one.ours is None else str(one.ours),
                    ours=one.ours is not None,
                )
                for one in self._waiting
            ),
        )

    def _begin(self, start_s: float) -> None:
        """Running and waiting at `start_s` is who was in the trace."""
        while self._next < len(self._jobs) and self._jobs[self._next].submit_s <= start_s:
            job = self._jobs[self._next]
            self._next += 1
            began_s = job.submit_s + job.wait_s
            if began_s > start_s:
                self._queue(job.nodes, job.limit_s, job.run_s, None)
            elif began_s + job.run_s > start_s and job.nodes <= self.free:
                self._run(self._number, job.nodes, began_s, job.limit_s, job.run_s, None)
                self._number += 1
        self._schedule()

    def _queue(self, nodes: int, limit_s: float, run_s: float, ours: Hashable | None) -> None:
        if nodes <= self.nodes:
            self._waiting.append(_Waiting(self._number, nodes, limit_s, run_s, ours))
        self._number += 1

    def _schedule(self) -> list[Hashable]:
        """Start whom `backfill.place` lets start now."""
        started: list[Hashable] = []
        waiting = self._waiting
        while waiting and waiting[0].nodes <= self.free:  # in order: no profile is needed for it
            self._start(waiting.pop(0), started)
        if not self.free or len(waiting) < 2:
            return started
        asked = waiting
        if self.depth == 1:  # behind the one that reserves, who does not fit has no say
            asked = waiting[:1] + [one for one in waiting[1:] if one.nodes <= self.free]
        if len(asked) > 1:
            profile = Profile(self.now_s, self.free, ((end, n) for end, _, n in self._limits))
            jobs = [(one.nodes, one.limit_s) for one in asked]
            starts = place(profile, jobs, self.now_s, self.depth)
            begin = [one for one, at in zip(asked, starts, strict=True) if at <= self.now_s]
            if begin:
                numbers = {one.number for one in begin}
                self._waiting = [one for one in waiting if one.number not in numbers]
                for one in begin:
                    self._start(one, started)
        return started

    def _start(self, one: _Waiting, started: list[Hashable]) -> None:
        self._run(one.number, one.nodes, self.now_s, one.limit_s, one.run_s, one.ours)
        if one.ours is not None:
            started.append(one.ours)

    def _run(
        self,
        number: int,
        nodes: int,
        began_s: float,
        limit_s: float,
        run_s: float,
        ours: Hashable | None,
    ) -> None:
        """Ours have no end of their own: whoever submitted them withdraws them at their limit."""
        self.free -= nodes
        end_by_s = began_s + limit_s
        self._running[number] = (end_by_s, nodes, ours)
        insort(self._limits, (end_by_s, number, nodes))
        if ours is None:
            heappush(self._ends, (began_s + min(run_s, limit_s), number))

    def _end(self, number: int) -> None:
        end_by_s, nodes, _ = self._running.pop(number)
        self.free += nodes
        del self._limits[bisect_left(self._limits, (end_by_s, number, nodes))]
