"""Which requests a site's limits and budget allow, what each is worth, and which one is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from ops.placement.shapes import (
    JobPhase,
    JobState,
    Reservation,
    Shape,
    SiteProfile,
    WaitEstimate,
)
from ops.placement.value import Chance, Cover, Worth, chained

MIN_USE = 0.5  # of the node time a job is given, what must be expected to do work
SPLIT_TIE = 0.98  # a split request that is worth this share of the whole one is preferred
PARTS = (1, 2)
BEFORE_MAINTENANCE = (0.95, 0.75, 0.5)  # shares of the time until it, that a job may ask for


@dataclass(frozen=True, slots=True)
class Option:
    """A request: so many independent jobs of one shape."""

    chance: Chance
    copies: int
    worth: Worth

    @property
    def shape(self) -> Shape:
        """Of each of them."""
        return self.chance.shape

    @property
    def nodes(self) -> int:
        """Of all of them."""
        return self.shape.nodes * self.copies


def full_shape(site: SiteProfile) -> Shape:
    """The default: as many nodes as allowed, for as long as allowed."""
    return max(site.shapes, key=lambda shape: (shape.nodes, shape.walltime_s))


def grid(site: SiteProfile, kept: Sequence[Reservation], now_s: float) -> tuple[Shape, ...]:
    """All shapes that are worth an estimate: those allowed, and shorter ones that end before the
    next maintenance, where an allowed one would have to wait until after it."""
    starts = [one.start_s - now_s for one in kept if one.start_s > now_s]
    if not starts:
        return site.shapes
    left_s = min(starts)
    nodes = sorted({shape.nodes for shape in site.shapes if shape.walltime_s > left_s})
    shorter = [
        Shape(num, minutes * 60)
        for num in nodes
        for share in BEFORE_MAINTENANCE
        if (minutes := int(left_s * share // 60)) * 60 >= site.limits.min_walltime_s
    ]
    return tuple(dict.fromkeys([*site.shapes, *shorter]))


def room_at(
    site: SiteProfile,
    jobs: Sequence[JobState],
    now_s: float,
    *,
    spent_node_hours: float,
    submitted_today: int,
    so_far: int,
) -> Room:
    """What is left of a site's limits. `spent_node_hours` counts running jobs up to now, `so_far`
    is how many jobs its chains have had."""
    limits = site.limits
    waiting = sum(job.phase is JobPhase.PENDING for job in jobs)
    hours = inf
    if limits.budget_node_hours is not None:
        due = sum(_due_hours(job, now_s) for job in jobs)
        hours = limits.budget_node_hours - spent_node_hours - due
    return Room(
        limits.max_pending - waiting,
        limits.max_submissions_a_day - submitted_today,
        limits.max_chain - so_far,
        hours,
        so_far,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """What limits and budget still allow at a site."""

    pending: int
    submissions: int
    chain_left: int
    node_hours: float
    index: int

    def less(self, shape: Shape) -> Room:
        return replace(
            self,
            pending=self.pending - 1,
            submissions=self.submissions - 1,
            chain_left=self.chain_left - 1,
            node_hours=self.node_hours - shape.node_hours,
            index=self.index + 1,
        )

    def why_not(self, copies: int = 1) -> str | None:
        """Which limit forbids so many jobs more, in words; None: none does."""
        if self.pending < copies:
            return "as many jobs wait as may"
        if self.submissions < copies:
            return "today's submissions are used up"
        if self.chain_left < copies:
            return "its chains are as long as they may be"
        return None


def _due_hours(job: JobState, now_s: float) -> float:
    """What a job may still use up: `spent_node_hours` counts running ones up to now."""
    if job.phase is JobPhase.PENDING or job.ends_at_s is None:
        return job.shape.node_hours
    return job.shape.nodes * max(0.0, job.ends_at_s - now_s) / 3600


def chances(
    site: SiteProfile,
    shapes: Sequence[Shape],
    waits: Mapping[tuple[str, Shape], WaitEstimate],
    cover: Cover,
) -> list[Chance]:
    """When a new job of each shape would run; shapes that are not expected to start are left
    out."""
    full = full_shape(site)
    typical = waits.get((site.name, full))
    kept = 0.0 if typical is None else chained(full, typical)
    found = ((shape, waits.get((site.name, shape))) for shape in shapes)
    return [
        Chance(cover.points, shape, wait, start_up_s=site.start_up_s, kept=kept)
        for shape, wait in found
        if wait is not None and wait.q(0.5) < inf
    ]


def best(
    site: SiteProfile, known: Sequence[Chance], cover: Cover, room: Room
) -> tuple[Option | None, str]:
    """The next request at a site, with the reason; or None, with the reason for that."""
    refused = room.why_not()
    if refused:
        return None, refused
    full = full_shape(site).nodes
    options = [
        Option(one, copies, cover.worth(one, copies))
        for one in known
        for copies in PARTS
        if one.shape.nodes * copies <= full
        and one.shape.node_hours * copies <= room.node_hours
        and not room.why_not(copies)
    ]
    if not options:
        return None, "no shape fits the budget and is expected to start"
    useful = [one for one in options if one.worth.use >= MIN_USE and one.worth.gain > 0]
    if not useful:
        use = max(one.worth.use for one in options)
        return None, f"what waits and runs is enough: one more would work {use:.0%} of its time"
    chosen, reason = _beyond_error(useful, full)
    splits = [
        one
        for one in useful
        if one.copies > chosen.copies
        and one.nodes == chosen.nodes
        and one.worth.gain >= SPLIT_TIE * chosen.worth.gain
    ]
    if splits:
        chosen = max(splits, key=lambda one: one.worth.gain)
        reason += "; split, since two waits are seldom both long"
    return chosen, reason


def _beyond_error(options: Sequence[Option], full: int) -> tuple[Option, str]:
    """The one with the largest gain, if it beats the default by more than the error of the two;
    else the default: the full shape, for as long as is useful."""
    top = max(options, key=lambda one: (one.worth.gain, -one.copies))
    whole = [one for one in options if one.nodes == full and one.copies == 1]
    default = max(whole, key=lambda one: one.shape.walltime_s, default=top)
    error = sqrt(top.worth.error**2 + default.worth.error**2)
    gain = top.worth.gain - default.worth.gain
    if top is default:
        return top, f"adds {top.worth.gain / 3600:.0f} node-hours"
    if gain <= error:
        return default, f"no other gains more than the error of {error / 3600:.0f} node-hours"
    told = f"{gain / 3600:.0f} node-hours more than {default.shape}"
    return top, f"{told}, error {error / 3600:.0f}"
