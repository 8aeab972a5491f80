"""R10, hung or busy: what a live incarnation owes, and since when it is overdue. Pure.

Progress is owed only while a block is in training; delivery of what is trained, once the round's
deadline is over. Waiting for a decision is owed by nobody. The hub watches its own trainer by the
same bounds and acts first; the coordinator counts ticks and gives it a lease more.
"""

from __future__ import annotations

from dataclasses import dataclass

from eventlog.config import Limits, Timing
from leases.agenda import of
from leases.rows import Incarnation
from leases.states import TRAINED, TRAINING
from leases.view import View

NEVER = 1 << 60  # a tick that does not come
SLOW_STEPS = 10  # as many of the slowest recent steps may pass without one more


def progress_bound_s(limits: Limits, timing: Timing, stepped: bool, step_s: float) -> float:
    """How long a trainer may train without a step: a lease, or ten of its slowest recent steps;
    until its first one, and at most, what the run allows for compiling."""
    longest_s = max(timing.lease_s, limits.compile_s)
    return min(longest_s, max(timing.lease_s, SLOW_STEPS * step_s)) if stepped else longest_s


@dataclass(frozen=True, slots=True)
class Owed:
    """What an incarnation keeps the run waiting for. `ticks`: since when; `bound_s`: how long that
    is allowed; `last_tick`: the last one before it is departed, a lease after the bound, in which
    its hub acts."""

    what: str
    ticks: int
    bound_s: float
    last_tick: int


def overdue(view: View, one: Incarnation) -> str:
    """Why an incarnation does not keep its lease though its hub lives; '' where it does."""
    if one.stalled_ticks <= 2 * Timing.BASE_K:
        return ""  # within every bound
    owed, tick_s = owes(view, one), view.timing().tick_s
    if owed is None or owed.ticks <= owed.last_tick:
        return ""
    took = f"{owed.ticks} ticks ({owed.ticks * tick_s:g} s; {owed.bound_s:g} s are allowed)"
    return f"{owed.what}, for {took}"


def owing_late(view: View) -> list[int]:
    """Incarnations that may be overdue now. Whoever is not is not asked about again before its
    bound could be over, unless its rows or the round change meanwhile."""
    agenda, now, found = of(view), view.run().term_ticks, []
    for seq in agenda.late_with_progress(now):
        one = view.incarnation(seq)
        owed = owes(view, one) if one else None
        if owed is None:
            agenda.progress.set(seq, NEVER)
        elif owed.ticks <= owed.last_tick:
            agenda.progress.set(seq, now + owed.last_tick - owed.ticks + 1)
        else:
            found.append(seq)
    return found


def owes(view: View, one: Incarnation) -> Owed | None:
    """What it owes now, if anything."""
    timing, limits = view.timing(), view.config().limits
    transfer_s = max(timing.lease_s, limits.transfer_s)
    ticks = one.stalled_ticks
    if one.version is None:
        return _owed(timing, "without a version since it was admitted", ticks, transfer_s)
    states = {block.state for block in view.held(one.token[0])}
    if TRAINING in states:
        if one.phase == "evaluating":
            bound_s = max(timing.lease_s, view.config().evaluation.most_s)
            return _owed(timing, "evaluating a version, with a block begun", ticks, bound_s)
        if one.phase != "training":  # it fetches or applies a version before it goes on
            return _owed(timing, f"{one.phase}, with a block begun", ticks, transfer_s)
        stepped = one.step > 0 or one.tokens > 0
        bound_s = progress_bound_s(limits, timing, stepped, one.step_s)
        return _owed(timing, "without a step in a block it trains", ticks, bound_s)
    if TRAINED in states and not view.has_undecided(one.token[0]):
        bound_s = transfer_s if one.phase == "publishing" else timing.lease_s
        ticks = min(ticks, _past_deadline(view))
        return _owed(timing, "past the deadline with trained blocks undelivered", ticks, bound_s)
    return None


def _past_deadline(view: View) -> int:
    """Ticks since the open round's deadline; none where there is no such round."""
    round_ = view.round()
    if round_ is None or round_.state != "open":
        return 0
    return max(0, view.run().ticks - round_.opened_ticks - round_.deadline_ticks)


def _owed(timing: Timing, what: str, ticks: int, bound_s: float) -> Owed:
    return Owed(what, ticks, bound_s, timing.ticks(bound_s) + timing.BASE_K)
