"""Held-out evaluation within a run: one site's trainer measures a version, between two blocks.

Whose turn it is everybody knows from the log (`leases.evaluators`). Nobody waits for it: a site
that leaves, or has a newer version already, lets its turn pass.
"""

from __future__ import annotations

from typing import Any

from eventlog.events import EvaluationCompleted
from leases.evaluators import evaluator
from sitehub.state import HubState


def due(hub: HubState, now: float) -> dict[str, Any] | None:
    """The command to evaluate the version that the trainer holds, where that is ours to do, and the
    job lasts long enough (P7); once for each."""
    version = hub.trainer.version
    if not version or version <= hub.evaluated or hub.incarnation is None:
        return None
    hub.evaluated = version
    if hub.leaving is not None or _outlives_job(hub, now):
        return None
    if evaluator(hub.view, version) != hub.incarnation[0]:
        return None
    return {"do": "evaluate", "max_tokens": hub.view.config().evaluation.max_tokens}


def on_evaluated(hub: HubState, answer: dict[str, Any]) -> None:
    """Say how good the version is; which one it was the trainer knows best."""
    if hub.departing:
        return
    hub.evaluate_s = float(answer["seconds"])
    names = ("version", "num_tokens", "loss", "perplexity", "bits_per_byte", "seconds")
    hub.queue.append(EvaluationCompleted.model_validate({name: answer[name] for name in names}))


def _outlives_job(hub: HubState, now: float) -> bool:
    """Whether it might not end before the margin of the job's walltime: it takes as long as the one
    before, or a lease where there was none."""
    if hub.walltime_end is None:
        return False
    timing = hub.view.timing()
    return hub.walltime_end - now - timing.margin_s < (hub.evaluate_s or timing.lease_s)
