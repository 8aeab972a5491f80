"""Whether a run has come apart: a loss that has left what is usual, or an evaluation that is no
number. Pure, and by the log alone; the coordinator then pauses the run, and says where to fork it.

Block losses are noisy, so the measure of usual is robust: the median of a window of versions, and
their median absolute deviation, which for a normal distribution is the standard deviation divided
by 1.4826 (Rousseeuw and Croux, "Alternatives to the median absolute deviation", 1993). One version
above it is noise; as many in a row as `divergence.patience` are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from eventlog.events import Event, RunPaused, shortened
from eventlog.steering import Divergence
from leases.view import View

_NORMAL = 1.4826
MIN_USUAL = 4  # versions, before anything can be called unusual


class Diverged(NamedTuple):
    """`version`: the newest one that nothing speaks against. `why`: for people."""

    version: int
    why: str


def diverged(view: View) -> Diverged | None:
    """Whether the folded run has diverged since it was created, or resumed last."""
    rule, since = view.config().divergence, _resumed_at(view)
    if rule.action == "none":
        return None
    losses = view.ask(
        "SELECT version, loss FROM versions WHERE version > ? AND loss IS NOT NULL "
        "ORDER BY version DESC LIMIT ?",
        since,
        rule.window + rule.patience,
    )
    measured = view.ask("SELECT version, loss FROM evaluations WHERE version > ?", since)
    return no_number(measured, since) or spike(losses[::-1], rule)


def no_number(measured: Sequence[tuple[int, float]], since: int = 0) -> Diverged | None:
    """An evaluation (version, held-out loss) that is not finite. `since`: a version that is taken
    to be good."""
    bad = [version for version, loss in measured if not math.isfinite(loss)]
    if not bad:
        return None
    good = [version for version, loss in measured if math.isfinite(loss) and version < min(bad)]
    why = f"the held-out loss of version {min(bad)} is not a finite number"
    return Diverged(max(good, default=since), why)


def spike(losses: Sequence[tuple[int, float]], rule: Divergence) -> Diverged | None:
    """Losses (version, mean nats per token of its training) in the order of versions. The loss of a
    version is that of training which began on the version before: the first loss that is too high
    therefore speaks against that one, and the newest to trust is one further back."""
    usual = [loss for _, loss in losses[: -rule.patience] if math.isfinite(loss)][-rule.window :]
    newest = losses[-rule.patience :]
    if len(usual) < MIN_USUAL:
        return None
    middle = median(usual)
    deviation = _NORMAL * median(abs(loss - middle) for loss in usual)
    limit = middle + max(rule.nats, rule.deviations * deviation)
    if any(loss <= limit for _, loss in newest):  # inf is above it, as NaN is folded
        return None
    first = newest[0][0]
    named = (
        f"version {first} has" if len(newest) == 1 else f"versions {first} to {newest[-1][0]} have"
    )
    said = ", ".join(f"{loss:.3f}" for _, loss in newest)
    why = (
        f"a loss spike: {named} a training loss of {said} nats; the {len(usual)} versions before "
        f"had {middle:.3f} ± {deviation:.3f}, and {limit:.3f} is the limit"
    )
    return Diverged(max(0, first - 2), why)


def pausing(view: View) -> list[Event]:
    """The pause of a run that has diverged; nothing where it has not, or does not run."""
    if view.run().state != "running" or (found := diverged(view)) is None:
        return []
    what = (
        f"it has diverged: {found.why}. Version {found.version} is the newest that nothing speaks "
        "against: fork the run from it with other settings, or resume it as it is"
    )
    return [RunPaused(reason=shortened(what))]


def _resumed_at(view: View) -> int:
    return int(view.ask("SELECT resumed_version FROM run")[0][0])
