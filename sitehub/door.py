"""A hub at the door of the run: its join, the answer, and what a departure means (R11)."""

from __future__ import annotations

import math

from eventlog.events import SiteJoined, Token
from leases.rows import Incarnation
from sitehub import boundary
from sitehub.actions import Action, Leave, StartTrainer
from sitehub.state import HubState

GOOD, FAILED, REFUSED, TEMPORARY = 0, 1, 6, 75  # exit codes


def knock(hub: HubState, now: float) -> list[Action]:
    """Not admitted yet: start a trainer, join once it is ready, wait for the answer. P7: who is not
    admitted before its job ends goes by itself."""
    found = _knock(hub, now)
    left_s = math.inf if hub.walltime_end is None else hub.walltime_end - now
    if found or hub.incarnation is not None or left_s >= hub.view.timing().margin_s:
        return found
    return [Leave(TEMPORARY, f"its job ends in {max(0.0, left_s):.0f} s, before it was admitted")]


def _knock(hub: HubState, now: float) -> list[Action]:
    if hub.leaving is not None:
        return [Leave(hub.leaving.exit_code, hub.leaving.reason)]
    if hub.join_seq is not None:
        return _answered(hub, hub.join_seq, now)
    if hub.trainer.ready is None:
        if hub.trainer.starting:
            return []
        hub.trainer.starting = True
        return [StartTrainer()]
    if not hub.joining and not hub.trainer.busy:
        hub.joining = True
        report = hub.trainer.ready
        hub.queue = [
            SiteJoined(
                hardware=report["hardware"],
                software=report["software"],
                manifest_digest=report["manifest_digest"],
                arithmetic=report["arithmetic"],
                walltime_left_s=None
                if hub.walltime_end is None
                else max(0.0, hub.walltime_end - now),
                predecessor=_living_predecessor(hub),
                successor=hub.successor,
            )
        ]
    return []


def _living_predecessor(hub: HubState) -> Token | None:
    """Our lock's last incarnation, where it has not departed."""
    if hub.predecessor is None:
        return None
    one = hub.view.incarnation(hub.predecessor[0])
    lives = one is not None and one.state != "departed" and one.token == hub.predecessor
    return hub.predecessor if lives else None


def _answered(hub: HubState, join_seq: int, now: float) -> list[Action]:
    answer = hub.view.answer(join_seq)
    if answer is None or answer.state == "waiting":
        behind = hub.view.live_at(hub.site) is not None
        return boundary.warm_up(hub, now) if behind else []
    if answer.state == "refused":
        return [Leave(REFUSED if answer.final else TEMPORARY, f"refused: {answer.reason}")]
    if answer.incarnation is None:
        return [Leave(TEMPORARY, f"another process joined as {hub.site} after this one")]
    one = hub.view.incarnation(answer.incarnation)
    assert one is not None
    hub.incarnation = one.token
    if hub.trainer.ready is None:
        hub.depart("trainer", "its trainer ended before it was admitted")
    return []


def departed(hub: HubState, one: Incarnation) -> list[Action]:
    """Our incarnation has ended: go, or join again where nobody wanted us gone."""
    if hub.appending:
        return []
    if hub.leaving is not None and one.code != "replaced":
        return [Leave(hub.leaving.exit_code, hub.leaving.reason)]
    if one.code in ("lost", "trainer"):
        hub.start_over()
        return []
    code = {"replaced": TEMPORARY, "unfit": REFUSED}.get(one.code, GOOD)
    if one.backoff_until:
        code = TEMPORARY  # R14: it may come back
    return [Leave(code, f"departed ({one.code}): {one.reason}")]
