"""The learning rate by the run's progress: every site, a joiner too, is at the same point of it."""

from __future__ import annotations

from eventlog.inner import Inner
from leases.progress import inner_share


def learning_rate(progress: float, inner: Inner) -> float:
    """The inner learning rate of a run at a progress in [0, 1]."""
    return inner.lr * inner_share(progress, inner)


def step_progress(progress_from: float, progress_to: float, step: int, num_steps: int) -> float:
    """The progress that step 0 <= `step` < num_steps of a block reaches, linear between the ends.

    The end of the step, not its start, so that a run's first step does not train at rate 0.
    """
    return progress_from + (progress_to - progress_from) * (step + 1) / num_steps
