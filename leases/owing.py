"""R10, hung or busy: what a live incarnation owes, and since when it is overdue. Pure.

Progress is owed only while a block is in training; delivery of what is trained, once the round's
deadline is over. Waiting for a decision is owed by nobody. The hub watches its own trainer by the
same bounds and acts first; the coordinator counts ticks and gives it a lease more.
"""

from __future__ import annotations

from eventlog.config import Limits, Timing
from leases.rows import Incarnation
from leases.states import TRAINED, TRAINING
from leases.view import View

SLOW_STEPS = 10  # as many of the slowest recent steps may pass without one more


def progress_bound_s(limits: Limits, timing: Timing, stepped: bool, step_s: float) -> float:
    """How long a trainer may train without a step: a lease, or ten of its slowest recent steps;
    until its first one, and at most, what the run allows for compiling."""
    longest_s = max(timing.lease_s, limits.compile_s)
    return min(longest_s, max(timing.lease_s, SLOW_STEPS * step_s)) if stepped else longest_s


def overdue(view: View, one: Incarnation) -> str:
    """Why an incarnation does not keep its lease though its hub lives; '' where it does."""
    timing, limits = view.timing(), view.config().limits
    transfer_s = max(timing.lease_s, limits.transfer_s)
    if one.version is None:
        what, bound_s = "without a version since it was admitted", transfer_s
        return _late(timing, one.stalled_ticks, bound_s, what)
    states = {block.state for block in view.held(one.token[0])}
    if TRAINING in states:
        if one.phase != "training":  # it fetches or applies a version before it goes on
            return _late(timing, one.stalled_ticks, transfer_s, f"{one.phase}, with a block begun")
        stepped = one.step > 0 or one.tokens > 0
        bound_s = progress_bound_s(limits, timing, stepped, one.step_s)
        return _late(timing, one.stalled_ticks, bound_s, "without a step in a block it trains")
    if TRAINED in states and not view.has_undecided(one.token[0]):
        bound_s = transfer_s if one.phase == "publishing" else timing.lease_s
        ticks = min(one.stalled_ticks, _past_deadline(view))
        return _late(timing, ticks, bound_s, "past the deadline with trained blocks undelivered")
    return ""


def _past_deadline(view: View) -> int:
    """Ticks since the open round's deadline; none where there is no such round."""
    round_ = view.round()
    if round_ is None or round_.state != "open":
        return 0
    return max(0, view.run().ticks - round_.opened_ticks - round_.deadline_ticks)


def _late(timing: Timing, ticks: int, bound_s: float, what: str) -> str:
    """The reason, once so many ticks exceed the bound and a lease more, in which its hub acts."""
    if ticks <= timing.ticks(bound_s) + timing.BASE_K:
        return ""
    return f"{what}, for {ticks} ticks ({ticks * timing.tick_s:g} s; {bound_s:g} s are allowed)"
