"""Backfill of one queue: when would a job of each shape start, by the rules a scheduler plans by.

`place` is the one rule. It goes through the queue in the order of priority; a job that fits now,
for its whole time limit and beside what is reserved, starts; of those that do not, the first
`depth` reserve the earliest time at which they do. depth 1 is EASY backfill (Lifka 1995), unlimited
depth conservative backfill, which is what Slurm's backfill plugin plans as far as its own limits
let it.

`survey` asks this of a snapshot for a whole grid of shapes: the queue is planned once, and each
shape then looks for its place behind it. `machine.Machine` lets the same rule work on through time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType

from ops.placement.shapes import QueueSnapshot, Shape

CONSERVATIVE = 1_000_000  # a depth no queue reaches
# A job past its limit: Slurm looks for those each half minute (seen: 0 to 30 s late, evenly); of
# one that is there even later its own plan says a second too (_guess_job_end, plugins/select).
LATEST_S = 30.0
ENDING_S = 1.0


class Profile:
    """How many nodes are free from when on: a step function over [now, inf)."""

    __slots__ = ("free", "times")

    def __init__(self, now_s: float, free: int, ends: Iterable[tuple[float, int]] = ()) -> None:
        """`ends`: (when, how many nodes come free), in rising order of time."""
        self.times = [now_s]
        self.free = [free]
        for end_s, nodes in ends:
            if end_s > self.times[-1]:
                self.times.append(end_s)
                self.free.append(self.free[-1] + nodes)
            else:
                self.free[-1] += nodes

    def earliest(self, nodes: int, duration_s: float, not_before_s: float) -> float:
        """The first time from which so many nodes are free for so long; inf where there is none."""
        times, free = self.times, self.free
        last = len(times) - 1
        start: float | None = None
        for k in range(max(0, bisect_right(times, not_before_s) - 1), last + 1):
            if free[k] < nodes:
                start = None
                continue
            if start is None:
                start = max(times[k], not_before_s)
            if k == last or times[k + 1] - start >= duration_s:
                return start
        return inf

    def take(self, nodes: int, start_s: float, end_s: float) -> None:
        """Keep so many nodes in [start, end), for a job or a reservation."""
        first, after = self._cut(start_s), self._cut(end_s)
        for k in range(first, after):
            self.free[k] -= nodes

    def _cut(self, at_s: float) -> int:
        """The index of the step that begins at this time, made where there was none."""
        k = bisect_right(self.times, at_s) - 1
        if k < 0:
            return 0
        if self.times[k] == at_s:
            return k
        if at_s == inf:
            return len(self.times)
        self.times.insert(k + 1, at_s)
        self.free.insert(k + 1, self.free[k])
        return k + 1


def place(
    profile: Profile, jobs: Sequence[tuple[int, float]], now_s: float, depth: int
) -> list[float]:
    """When each job (nodes, limit), in the order of priority, starts; inf for one that neither
    starts now nor reserves. The profile is left with all of them in it."""
    starts = []
    num_reserved = 0
    for nodes, limit_s in jobs:
        waits = num_reserved >= depth
        if waits and nodes > profile.free[0]:
            starts.append(inf)
            continue
        start_s = profile.earliest(nodes, limit_s, now_s)
        if start_s > now_s:
            num_reserved += 1
        if start_s == inf or (waits and start_s > now_s):
            starts.append(inf)
            continue
        profile.take(nodes, start_s, start_s + limit_s)
        starts.append(start_s)
    return starts


@dataclass(frozen=True, slots=True)
class Survey:
    """Seconds until a start, for new jobs in the order of the shapes asked for and for jobs of ours
    that wait, by (job, shape); inf where there would be none."""

    new: tuple[float, ...]
    own: Mapping[tuple[str, Shape], float]


def survey(
    snapshot: QueueSnapshot,
    shapes: Sequence[Shape],
    own: Mapping[str, Sequence[Shape]] = MappingProxyType({}),
    *,
    shares: Sequence[float] = (),
    random: Random | None = None,
) -> Survey:
    """One plan of the queue, and in it when a new job of each shape, last in the queue, would
    start, and each job in `own` (by job id), in its place, as each of the shapes named for it.

    Without `shares` every job lasts as long as its limit, as Slurm plans. With shares (of the limit
    that ended jobs of this queue used) each job lasts a share of its limit drawn from those.
    """
    if not snapshot.up:
        never = {(job, shape): inf for job, those in own.items() for shape in those}
        return Survey((inf,) * len(shapes), never)
    profile, _, found = planned(snapshot, own, shares=shares, random=random)
    now = snapshot.now_s
    new = (profile.earliest(one.nodes, one.walltime_s, now) - now for one in shapes)
    return Survey(tuple(new), found)


def planned(
    snapshot: QueueSnapshot,
    own: Mapping[str, Sequence[Shape]] = MappingProxyType({}),
    *,
    shares: Sequence[float] = (),
    random: Random | None = None,
) -> tuple[Profile, list[float], dict[tuple[str, Shape], float]]:
    """The plan itself: (free nodes with the whole queue in place, the epoch at which each pending
    job starts, seconds from now for what `own` asks)."""
    now = snapshot.now_s
    profile = _as_it_runs(snapshot, shares, random)
    starts_s: list[float] = []
    found: dict[tuple[str, Shape], float] = {}
    for job in snapshot.pending:
        not_before_s = max(now, job.eligible_s or now)
        for shape in own.get(job.job_id or "", ()):
            at_s = profile.earliest(shape.nodes, shape.walltime_s, not_before_s)
            found[job.job_id or "", shape] = at_s - now
        start_s = inf
        if not job.held:
            lasts_s = job.limit_s * _share(shares, random)
            start_s = profile.earliest(job.nodes, lasts_s, not_before_s)
            if start_s < inf:
                profile.take(job.nodes, start_s, start_s + lasts_s)
        starts_s.append(start_s)
    return profile, starts_s, found


def starts(snapshot: QueueSnapshot, shapes: Sequence[Shape]) -> tuple[float, ...]:
    """Seconds until a new job of each shape would start, as Slurm plans: by limits."""
    return survey(snapshot, shapes).new


def _as_it_runs(snapshot: QueueSnapshot, shares: Sequence[float], random: Random | None) -> Profile:
    now = snapshot.now_s
    ends = []
    for job in snapshot.running:
        left_s = job.end_by_s - now
        if left_s > 0:
            left_s *= _share(shares, random)
        else:  # only such a job: one that is not past its limit ends at it
            left_s = max(left_s + LATEST_S, ENDING_S)
        ends.append((now + left_s, job.nodes))
    profile = Profile(now, snapshot.free_nodes, sorted(ends))
    for kept in snapshot.reservations:
        if kept.end_s > now:
            profile.take(kept.nodes, max(kept.start_s, now), kept.end_s)
    return profile


def probed(snapshot: QueueSnapshot, shape: Shape) -> float | None:
    """What `sbatch --test-only` would say, as seconds from now; None: "not available".

    By Slurm's source: (a) when enough running jobs reach their limits, plus (b) the node-time of
    the pending jobs over the size of the partition. It is blind to the walltime asked for.
    """
    up = snapshot.total_nodes - snapshot.down_nodes
    if shape.nodes > up:
        return None
    ends = sorted((max(job.end_by_s, snapshot.now_s), job.nodes) for job in snapshot.running)
    profile = Profile(snapshot.now_s, snapshot.free_nodes, ends)
    first_s = profile.earliest(shape.nodes, 0.0, snapshot.now_s) - snapshot.now_s
    queued = sum(job.nodes * job.limit_s for job in snapshot.pending if not job.held)
    return first_s + queued / max(1, snapshot.total_nodes)


def _share(shares: Sequence[float], random: Random | None) -> float:
    return random.choice(shares) if shares and random is not None else 1.0
