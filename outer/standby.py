"""When a coordinator is needed, and when a process that stands by may become it (R8)."""

from __future__ import annotations

from dataclasses import dataclass

from leases.view import View


@dataclass(slots=True)
class Standby:
    """When a standby may claim the term (R8): by its own clock, K ticks' time without a tick."""

    since: float | None = None  # when the silence that counts began

    def heard(self, now: float) -> None:
        """A coordinator's event was folded as it came."""
        self.since = now

    def may_claim(self, now: float, term: int, owed: bool, patience_s: float) -> bool:
        """Whether to claim: at once where nobody ever did, else after the patience."""
        if term == 0:
            return True
        if not owed:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return now - self.since >= patience_s


def owed(view: View) -> bool:
    """Whether a coordinator is needed: a live site waits for ticks, or an answer is due."""
    run = view.run()
    if run.state in ("none", "finished"):
        return False
    return bool(
        run.live
        or view.backs_off()
        or view.waiting_joins()
        or view.has_open_delta()
        or view.round_is_cut()
        or run.state == "stopping"
        or view.target_reached()
    )
