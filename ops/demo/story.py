"""What happens in the demo and when: a pure function of the lease table.

Two sites begin, a third comes late, the second is killed in mid-round while it trains, and comes
back after its blocks went to the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from leases.states import TRAINED, TRAINING
from leases.view import View

FIRST, KILLED, LATE = "alpha", "beta", "gamma"
LATE_VERSION, KILL_VERSION = 2, 4


@dataclass(slots=True)
class Story:
    """What has been done so far."""

    begun: bool = False
    late: bool = False
    killed: int | None = None  # the incarnation
    returned: bool = False

    def next_act(self, view: View) -> tuple[str, str] | None:
        """("start" or "kill", site) where its time has come; each is told once."""
        run = view.run()
        if run.state != "running":
            return None
        if not self.late and run.version >= LATE_VERSION:
            self.late = True
            return ("start", LATE)
        if self.killed is None and run.version >= KILL_VERSION:
            one = view.live_at(KILLED)
            if one is not None and _in_the_middle(view, one.token[0]):
                self.killed = one.token[0]
                return ("kill", KILLED)
        if self.killed is not None and not self.returned:
            one = view.incarnation(self.killed)
            if one is not None and one.state == "departed":
                self.returned = True
                return ("start", KILLED)
        return None

    @property
    def told(self) -> bool:
        """Whether everything that the demo promises has happened."""
        return self.late and self.returned


def _in_the_middle(view: View, incarnation: int) -> bool:
    """It has trained something, trains now, and has delivered nothing of it."""
    states = [block.state for block in view.held(incarnation)]
    return TRAINED in states and TRAINING in states


def told(what: str, name: str) -> str:
    """An act in words."""
    if what == "kill":
        return f"kills {name} in mid-round, with SIGKILL to its hub and its trainer"
    return f"starts {name}" + (", which joins late" if name == LATE else " again")
