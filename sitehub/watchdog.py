"""The hub's eye on its trainer: R10 by the hub's own clock.

A command is answered, and a block in training shows a new step, within a bound, or the trainer is
given up. What the hub did not watch itself, because it slept too, does not count.
"""

from __future__ import annotations

from leases.owing import progress_bound_s
from sitehub.actions import Action, EndTrainer
from sitehub.state import HubState


def watch(hub: HubState, now: float) -> list[Action]:
    """End a trainer that hangs and say that the incarnation departs; once."""
    why = _hangs(hub, now)
    if not why or hub.trainer.ending:
        return []
    hub.trainer.ending = True
    hub.depart("trainer", why)
    return [EndTrainer(why)]


def _hangs(hub: HubState, now: float) -> str:
    trainer, eye = hub.trainer, hub.eye
    timing, limits = hub.view.timing(), hub.view.config().limits
    mark = (trainer.num_told, trainer.step)
    if mark != eye.mark or now - eye.looked > timing.lease_s / 2:
        eye.mark, eye.since = mark, now
    eye.looked = now
    if not trainer.busy:
        return ""
    bound_s = max(timing.lease_s, limits.compile_s)
    if trainer.busy == "train":
        bound_s = progress_bound_s(limits, timing, trainer.step > 0, trainer.step_s)
    if now - eye.since <= bound_s:
        return ""
    what = "no step" if trainer.busy == "train" else f"no answer to {trainer.busy!r}"
    return f"its trainer hangs: {what} for {now - eye.since:.1f} s; {bound_s:.1f} s are allowed"
