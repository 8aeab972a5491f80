"""How large a delta may be (P8): the guard against exploding ones, ADR-0009. Pure.

An inner optimizer of Adam's kind moves each parameter by about the learning rate a step, so what
the L2 norm of a delta can be grows with its *effort*: its tokens times the learning rate at which
they were trained. A delta is held against what the newest merged deltas and the other sites' deltas
of its cut would be at its effort, were it larger than theirs; a smaller effort excuses nothing and
is no fault. Larger than `limits.outlier_factor` times both: an outlier. With nothing to compare
with, nothing is one.

Everything here is a function of log and blobs (P3): the norms are those of the blobs' content, and
a merged delta's claim was held against its blob before it was merged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

from leases.progress import inner_share, share_done
from leases.rows import Delta
from leases.view import View

MAX_HISTORY = 16  # newest merged deltas that count
MIN_HISTORY = 3  # with fewer, one odd first delta could refuse all that follow
CLAIM_TOLERANCE = 1 / 64  # relative; a site measures before it encodes, bf16 keeps 8 bits
ROUNDING = (1 - CLAIM_TOLERANCE) ** -2  # what two claims, of a delta and its bound, may hide


@dataclass(frozen=True, slots=True)
class Bound:
    """The norm that a delta may have at most, and of what that is a multiple."""

    norm: float
    factor: float
    what: str

    def reason(self, norm: float) -> str:
        """Why a delta of this norm is refused."""
        times = norm * self.factor / self.norm
        return (
            f"its norm of {norm:.4g} is {times:.3g} times that of {self.what}, allowed are "
            f"{self.factor:g} times (limits.outlier_factor)"
        )


@dataclass(frozen=True, slots=True)
class _Sized:
    norm: float
    effort: float

    def at(self, effort: float) -> float:
        """The norm it would have at another effort, never less than its own."""
        return self.norm * max(1.0, effort / self.effort)


def claim_holds(claimed: float, found: float) -> bool:
    """Whether the norm that a site said is that of its blob."""
    return math.isclose(claimed, found, rel_tol=CLAIM_TOLERANCE, abs_tol=1e-30)


class Guard:
    """The guard of one cut. `norms`: of each of its deltas, by sequence."""

    def __init__(self, view: View, deltas: Sequence[Delta], norms: Mapping[int, float]) -> None:
        self._factor = view.config().limits.outlier_factor
        self._deltas, self._norms = deltas, norms
        if not self._factor:
            return
        self._sized = {one.token[0]: _sized(view, one, norms[one.token[0]]) for one in deltas}
        merged = [_sized(view, one, one.norm) for one in _last_merged(view)]
        history = [one for one in merged if _compares(one)]
        self._history = history if len(history) >= MIN_HISTORY else []

    def outliers(self) -> list[tuple[Delta, str]]:
        """The deltas that are too large, each with the reason."""
        if not self._factor:
            return []
        median = self._least_median()
        found = []
        for one in self._deltas:
            norm = self._norms[one.token[0]]
            if norm > self._factor * median and (bound := self.bound(one)):
                found += [(one, bound.reason(norm))] if norm > bound.norm else []
        return found

    def bound(self, one: Delta) -> Bound | None:
        """The larger of what history and peers allow: where all sites' deltas grow, none is odd.
        None where nothing compares."""
        if not self._factor:
            return None
        effort = self._sized[one.token[0]].effort
        peers = [self._sized[other.token[0]] for other in self._deltas if other.site != one.site]
        vouching = [other.at(effort) for other in peers if _compares(other)]
        history = [other.at(effort) for other in self._history]
        found = []
        if history:
            found.append((median_low(history), "the deltas merged last"))
        if vouching:  # against a history only their majority counts; with none, a tiny one does not
            median = median_low(vouching) if history else median_high(vouching)
            found.append((median, "the others in its round"))
        norm, what = max(found, default=(0.0, ""))
        return Bound(norm * self._factor, self._factor, what) if found else None

    def _least_median(self) -> float:
        """No delta's peers have a smaller median: so a cut of a thousand healthy deltas takes no
        thousand medians."""
        sites = Counter(one.site for one in self._deltas)
        norms = sorted(one.norm for one in self._sized.values() if _compares(one))
        num_peers = len(norms) - max(sites.values(), default=0)
        return norms[(num_peers - 1) // 2] if num_peers > 0 else 0.0


def _last_merged(view: View) -> list[Delta]:
    """The deltas that were merged last, newest round first."""
    found: list[Delta] = []
    version = view.run().version
    while version > 0 and len(found) < MAX_HISTORY:
        row = view.version(version)
        found += reversed(view.merged_in(row.round)) if row else []
        version -= 1
    return found[:MAX_HISTORY]


def _compares(one: _Sized) -> bool:
    return 0.0 < one.norm < math.inf and one.effort > 0.0


def _sized(view: View, delta: Delta, norm: float) -> _Sized:
    """A delta's norm and effort: its tokens at the rate of the middle of its way."""
    config, base = view.config(), view.version(delta.base_version)
    merged = base.merged_tokens if base else 0
    index, middle = view.index(), delta.tokens // 2
    progress = share_done(config, index, delta.base_version, merged, middle)
    share = inner_share(progress, config.inner)
    return _Sized(norm, delta.tokens * share)
