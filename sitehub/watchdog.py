"""The hub's eye on its trainer: R10 by the hub's own clock.

A command is answered, and a block in training shows a new step, within a bound, or the trainer is
given up. What the hub did not watch itself, because it slept too, does not count.
"""

from __future__ import annotations

from leases.owing import progress_bound_s
from sitehub.actions import Action, EndTrainer
from sitehub.state import Eye, HubState


def watch(hub: HubState, now: float) -> list[Action]:
    """End a trainer that hangs and say that the incarnation departs; once."""
    why = _hangs(hub, now)
    if not why or hub.trainer.ending:
        return []
    hub.trainer.ending = True
    hub.depart("trainer", why)
    return [EndTrainer(why)]


def _hangs(hub: HubState, now: float) -> str:
    trainer, timing, limits = hub.trainer, hub.view.timing(), hub.view.config().limits
    command_s = bound_s = max(timing.lease_s, limits.compile_s)
    if trainer.busy == "train":
        bound_s = progress_bound_s(limits, timing, trainer.step > 0, trainer.step_s)
    elif trainer.busy == "evaluate":
        bound_s = max(timing.lease_s, hub.view.config().evaluation.most_s)
    looks = (
        (hub.eye, trainer.busy, (trainer.num_told, trainer.step), bound_s),
        (hub.eye_beside, trainer.beside, (trainer.num_beside, 0), command_s),
    )
    stood = [_stood_s(eye, mark, now, timing.lease_s) for eye, _, mark, _ in looks]
    for (_, what, _, allowed_s), since_s in zip(looks, stood, strict=True):
        if what and since_s > allowed_s:
            lacks = "no step" if what == "train" else f"no answer to {what!r}"
            return f"its trainer hangs: {lacks} for {since_s:.1f} s; {allowed_s:.1f} s are allowed"
    return ""


def _stood_s(eye: Eye, mark: tuple[int, int], now: float, lease_s: float) -> float:
    """For how long the mark has been the same, while this hub was awake."""
    if mark != eye.mark or now - eye.looked > lease_s / 2:
        eye.mark, eye.since = mark, now
    eye.looked = now
    return now - eye.since
