"""How long a job would wait: a distribution, from what is asked and from how wrong it was before.

What a queue says (`sbatch --test-only`, `squeue --start`, or our own simulation) is a feature, not
an answer. The score of a past job is log((wait + C) / (said + C)): how many times as long as said
it took, with minutes counting little. The quantiles of the scores of jobs of the same kind make the
distribution (`conformal`). Until enough of them have started there is a prior; an outage resets to
it, since what a queue did before says little about what it does after.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import exp, inf, log

from ops.placement.conformal import LEVELS, Scores
from ops.placement.shapes import Basis, WaitEstimate

SOFTEN_S = 120.0  # C: below it a wait is as good as none
NOW_S = 60.0  # said to start within it: "now", the trustworthy answer
MIN_OBSERVED = 8  # starts of a kind, from which on they and not the prior are believed
ROUNDING_S = 1e-3  # a start as late as one before is within a bound that was made of that one
LONGEST_S = 90 * 86400.0
# Quantiles of the scores at LEVELS before anything is known. From published pairs of estimate and
# start: of those said to start now, half did within 3 minutes and 90 % within 4 h; else half start
# about when said. With nothing said: half within 2 h, 90 % within 14 h, as in published traces.
NOW = (0.0, 0.0, 0.0, 0.2, 0.4, 0.6, 0.9, 1.6, 2.5, 3.6, 4.8, 5.5)
LATER = (-2.5, -2.0, -1.5, -0.9, -0.5, -0.2, 0.0, 0.2, 0.5, 0.9, 1.5, 2.0)
UNSAID = tuple(
    log(7200.0 / SOFTEN_S) + 1.5 * z
    for z in (-2.05, -1.64, -1.28, -0.84, -0.52, -0.25, 0.0, 0.25, 0.52, 0.84, 1.28, 1.64)
)


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of a job that may be submitted, or waits: seconds from now until it starts, by
    who says so; None where nobody does. `group`: jobs that resemble it in what nobody says."""

    probe_s: float | None = None  # sbatch --test-only
    simulated_s: float | None = None  # our own backfill of the whole queue
    start_s: float | None = None  # squeue --start, of a job of ours that waits
    group: Hashable = None

    def best(self) -> tuple[str, float | None]:
        """The most telling of them: (who says it, seconds)."""
        for name in ("start", "simulated", "probe"):
            said: float | None = getattr(self, f"{name}_s")
            if said is not None and said < inf:
                return name, said
        return "none", None


@dataclass(slots=True)
class Forecast:
    """An estimate that will be judged: `kind` says by whose history it was made."""

    estimate: WaitEstimate
    kind: Hashable
    said_s: float
    num_judged: int = field(default=len(LEVELS))  # levels from this one up are already judged


class Estimator:
    """What one site's queue has taught. `window`, `rate`: see `conformal.Scores`."""

    def __init__(self, window: int = 400, rate: float = 0.02) -> None:
        self._window, self._rate = window, rate
        self._kinds: dict[Hashable, Scores] = {}

    def forecast(self, features: Features) -> Forecast:
        """The distribution of the wait from now on, with the kind to judge it by."""
        name, said = features.best()
        said_s = said or 0.0
        when = "" if said is None else " now" if said_s <= NOW_S else " later"
        kind = (name + when, features.group)
        prior = UNSAID if said is None else NOW if said_s <= NOW_S else LATER
        scores = self._kinds.get(kind)
        known = 0 if scores is None else len(scores)
        if scores is None or known < MIN_OBSERVED:
            return Forecast(
                _distribution(prior, said_s, Basis.PRIOR, name + when, known), kind, said_s
            )
        found = scores.quantiles()
        top = max((one for one in found if one < inf), default=0.0)
        filled = [max(top, prior[k]) if one == inf else one for k, one in enumerate(found)]
        basis = Basis.SIMULATED if name == "simulated" else Basis.CALIBRATED
        return Forecast(_distribution(filled, said_s, basis, name + when, known), kind, said_s)

    def observe(self, forecast: Forecast, wait_s: float) -> None:
        """The job has started: its score counts from now on, and its bounds are judged."""
        scores = self._kinds.setdefault(forecast.kind, Scores(self._window, self._rate))
        self._judge(scores, forecast, wait_s, started=True)
        scores.add(log((max(wait_s, 0.0) + SOFTEN_S) / (forecast.said_s + SOFTEN_S)))

    def overdue(self, forecast: Forecast, waited_s: float) -> None:
        """The job still waits: the bounds it has passed did not hold."""
        scores = self._kinds.get(forecast.kind)
        if scores is not None:
            self._judge(scores, forecast, waited_s, started=False)

    def reset(self) -> None:
        """Forget: after an outage the queue is another one."""
        self._kinds.clear()

    def _judge(self, scores: Scores, forecast: Forecast, waited_s: float, *, started: bool) -> None:
        """Bounds fail from the lowest up; what is left when the job starts has held."""
        bounds = forecast.estimate.waits_s
        first = len(LEVELS) - forecast.num_judged
        for level in range(first, len(LEVELS)):
            passed = waited_s > bounds[level]
            if not passed and not started:
                break
            scores.judge(level, not passed)
            forecast.num_judged -= 1


def _distribution(
    scores: tuple[float, ...] | list[float], said_s: float, basis: Basis, kind: str, known: int
) -> WaitEstimate:
    softened = said_s + SOFTEN_S
    late = [softened * exp(one) - SOFTEN_S for one in scores]
    waits = tuple([min(LONGEST_S, (one if one > 0 else 0.0) + ROUNDING_S) for one in late])
    text = f"{kind}: {'prior' if basis is Basis.PRIOR else f'{known} starts observed'}"
    return WaitEstimate(LEVELS, waits, basis, text, known)


def given(estimate: WaitEstimate, waited_s: float) -> WaitEstimate:
    """What is left of a wait, from now, where so much of it has passed without a start. Beyond all
    that was expected: about as long again as it took."""
    passed = estimate.p(waited_s)
    if passed >= 1.0:
        left = [waited_s * level for level in estimate.levels]
    else:
        left = [
            max(0.0, estimate.q(passed + level * (1 - passed)) - waited_s)
            for level in estimate.levels
        ]
    rising = tuple(accumulate(left, max))  # interpolation rounds
    return replace(estimate, waits_s=rising)
