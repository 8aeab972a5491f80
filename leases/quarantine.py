"""Blocks that nobody can train are set aside, counted and reported (R14). Pure."""

from __future__ import annotations

from eventlog.events import BlockQuarantined
from leases.view import View

MAX_AT_ONCE = 200  # of one decision; what is left is decided next


def quarantines(view: View) -> list[BlockQuarantined]:
    """Available blocks in k deltas that were refused for their values: from two sites, or where
    no other site is live that could try. With nobody live nothing is given up."""
    if not view.ask("SELECT 1 FROM suspects LIMIT 1"):
        return []
    suspects = _suspects(view, view.config().limits.quarantine)
    live = {one.site for one in view.live()} if suspects else set()
    return [
        BlockQuarantined(
            epoch=epoch,
            block=block,
            reason=f"in {refusals} deltas refused for their values, of {', '.join(sites)[:500]}",
        )
        for epoch, block, refusals, sites in suspects
        if live and (len(sites) > 1 or live <= set(sites))
    ][:MAX_AT_ONCE]


def _suspects(view: View, num_refusals: int) -> list[tuple[int, int, int, list[str]]]:
    """(epoch, block, refusals, sites) of available blocks in so many refused deltas."""
    rows = view.ask(
        "SELECT s.epoch, s.block, sum(s.refusals), group_concat(s.site) FROM suspects s "
        "CROSS JOIN blocks b ON b.epoch = s.epoch AND b.block = s.block "
        "WHERE b.state = 'available' GROUP BY s.epoch, s.block "
        "HAVING sum(s.refusals) >= ? ORDER BY s.epoch, s.block",
        num_refusals,
    )
    return [(epoch, block, num, sorted(sites.split(","))) for epoch, block, num, sites in rows]
