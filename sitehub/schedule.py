"""The learning rate by the run's progress: every site, a joiner too, is at the same point of it."""

from __future__ import annotations

import math

from eventlog.config import Inner


def lr_share(progress: float, warmup: float, final_share: float) -> float:
    """The share of the peak rate at a progress in [0, 1] (clamped): linear from 0 to 1 over
    `warmup`, then half a cosine from 1 down to `final_share` (SGDR, arXiv:1608.03983, eq. 5)."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if warmup >= 1.0:
        return 1.0
    done = (progress - warmup) / (1.0 - warmup)
    return final_share + (1.0 - final_share) * (1.0 + math.cos(math.pi * done)) / 2.0


def learning_rate(progress: float, inner: Inner) -> float:
    """The inner learning rate of a run at a progress in [0, 1]."""
    return inner.lr * lr_share(progress, inner.warmup, inner.final_lr)


def step_progress(progress_from: float, progress_to: float, step: int, num_steps: int) -> float:
    """The progress that step 0 <= `step` < num_steps of a block reaches, linear between the ends.

    The end of the step, not its start, so that a run's first step does not train at rate 0.
    """
    return progress_from + (progress_to - progress_from) * (step + 1) / num_steps
