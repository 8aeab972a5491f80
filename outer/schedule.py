"""Which outer step a version is made with: a function of configuration and log, the same for all.

Coordinator, sites, recovery, evaluation and the deep audit ask here and nowhere else. The rate
depends on how far the version brings the run, which `RoundCommitted` and the ledger say.
"""

from __future__ import annotations

import math

from eventlog.config import Outer
from leases.progress import share_merged
from leases.view import View
from outer.nesterov import Rule

_COEFFICIENTS = tuple((-1) ** k / math.factorial(2 * k) for k in range(12))


def rule_at(view: View, version: int, merged_tokens: int) -> Rule:
    """The rule of the step that makes a version, after which so many tokens are merged in all."""
    config = view.config()
    return rule_of(config.outer, share_merged(config, view.index(), version, merged_tokens))


def rule_of(outer: Outer, progress: float) -> Rule:
    """The rule of the step that brings the run to this progress, in [0, 1]."""
    return Rule.of(outer.lr * rate_share(outer, progress), outer.momentum)


def rate_share(outer: Outer, progress: float) -> float:
    """η as a share of outer.lr: from 0 up to 1 over `warmup`, then constant, or by a line or half a
    cosine down to `final_lr` at the end. float64, by operations that every machine rounds alike."""
    if progress < outer.warmup:
        return progress / outer.warmup
    if outer.schedule == "constant" or outer.warmup >= 1.0:
        return 1.0
    done = (min(progress, 1.0) - outer.warmup) / (1.0 - outer.warmup)
    left = 1.0 - done if outer.schedule == "linear" else (1.0 + _cos_pi(done)) / 2.0
    return outer.final_lr + (1.0 - outer.final_lr) * left


def _cos_pi(x: float) -> float:
    """cos(πx) for x in [0, 1] by its series: `math.cos` is each C library's own, sums and products
    are not."""
    if x > 0.5:
        return -_cos_pi(1.0 - x)
    angle, total = math.pi * x, 0.0
    for coefficient in reversed(_COEFFICIENTS):
        total = total * (angle * angle) + coefficient
    return total
