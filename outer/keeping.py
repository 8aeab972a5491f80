"""Decisions about what outlasts a round: snapshots, released blobs, the end of the run. Pure."""

from __future__ import annotations

from eventlog.events import BlobsReleased, Event, RunFinished, shortened
from leases import retention
from leases.agenda import of
from leases.view import View
from outer.facts import Facts
from outer.orphans import longest_upload_ticks


def snapshot_due(view: View) -> bool:
    """Whether the newest version is to be stored whole: each so many versions, each so many
    minutes (in ticks, R8), and the last one of a run."""
    run, settings = view.run(), view.config().snapshots
    newest = view.version(run.version)
    if newest is None or newest.snapshot_blob is not None:
        return False
    if newest.version % settings.every_versions == 0:
        return True
    before = view.snapshot_at_most(newest.version)
    waited = run.ticks - (before.ticks if before else 0)
    minutes = settings.every_minutes
    if minutes and waited >= view.timing().ticks(60 * minutes):
        return True
    return view.target_reached() or run.state == "stopping"


def saving(view: View, facts: Facts) -> list[Event]:
    """Snapshots that are stored, and what need not be kept since."""
    fresh: list[Event] = [
        one
        for one in facts.saved
        if (row := view.version(one.version)) is not None and row.snapshot_blob is None
    ]
    return fresh or releasing(view) or sweeping(view, facts)


def releasing(view: View) -> list[Event]:
    """Deltas and updates up to the horizon, and the snapshots before it."""
    agenda = of(view)
    if view.config().snapshots.retention == "all" or not agenda.retention_is_new:
        return []  # it was looked at, and nothing that matters changed since
    horizon, reason = retention.horizon(view.db)
    needed, old = retention.split(view.db, horizon) if horizon else (set(), set())
    blobs = sorted(old - needed)[:1000]
    if not blobs:
        agenda.retention_is_new = False
        return []
    return [BlobsReleased(blobs=tuple(blobs), reason=reason)]


def sweeping(view: View, facts: Facts) -> list[Event]:
    """Orphans: half a blob whose upload was given up, or a whole one whose event never came."""
    if not facts.unnamed:
        return []
    bound, tick = longest_upload_ticks(view), view.run().term_ticks
    old = [blob for blob, since in facts.unnamed.items() if tick - since > bound]
    blobs = retention.unnamed(view.db, old)[:1000]
    if not blobs:
        return []
    return [
        BlobsReleased(
            blobs=tuple(blobs),
            reason=f"orphans: for {bound} ticks, longer than an upload may take, nothing was added "
            "to them and no event named them",
        )
    ]


def finishing(view: View, facts: Facts) -> list[Event]:
    """The end: the target is reached, or a stop was asked for and everyone has left (R15)."""
    run, round_ = view.run(), view.round()
    stopped = (
        run.state == "stopping"
        and not run.live
        and not (round_ is not None and (round_.state == "closed" or of(view).num_undecided))
    )
    reached = view.target_reached() and (  # a quarantine reaches it within a round, too
        round_ is None or (round_.state == "open" and not view.deltas("undecided"))
    )
    if not (stopped or reached) or facts.digests is None:
        return []
    newest = view.version(run.version)
    if newest is not None and newest.snapshot_blob is None:
        return []  # the final version is kept whole first
    undecided = view.deltas("undecided")
    num_held = view.num_held()
    what = f"{run.merged_tokens:,} tokens in {run.version} round{'s' * (run.version != 1)}"
    why = f"the target is reached: {what}" if reached else f"stopped: {run.reason}; {what}"
    return [
        RunFinished(
            outcome="target" if reached else "stopped",
            version=run.version,
            tokens=run.merged_tokens,
            undecided=tuple(delta.token for delta in undecided),
            num_returned=num_held,
            parameters_digest=facts.digests[0],
            momentum_digest=facts.digests[1],
            residual_digest=facts.digests[2],
            through=facts.folded[0] if facts.folded else None,
            log_digest=facts.folded[1] if facts.folded else None,
            reason=shortened(why),
        )
    ]
