"""The coordinator's decisions about rounds: pure functions of the lease table and of `Facts`.

A round opens on the newest version, gets deltas, is cut, merged and committed, or waits: with no
delta it stays open. Every condition is asked again at every tick, so no message is depended on
(R13).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eventlog.events import (
    BlobsReleased,
    Cut,
    DeltaRefused,
    Event,
    LeaseReclaimed,
    Quota,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    RunFinished,
    SnapshotSaved,
)
from leases import policy
from leases.blocks import weights
from leases.progress import target_reached
from leases.rows import Delta, Incarnation, Round
from leases.states import LEASED
from leases.view import View


@dataclass(frozen=True, slots=True)
class Verdict:
    """What checking a delta's blob found. code '': it may be merged."""

    code: str = ""
    reason: str = ""

    @property
    def values(self) -> bool:
        """Whether the cause lies in the delta's own values or form (R14)."""
        return self.code in ("form", "nonfinite", "outlier")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the coordinator's work outside the log has found so far; all of it can be found again.

    verdicts: by delta sequence. merged: the merge of the current cut, ready to commit. saved:
    snapshots stored and not yet in the log. digests: of parameters, momentum and residual now.
    """

    verdicts: dict[int, Verdict] = field(default_factory=dict)
    merged: RoundCommitted | None = None
    saved: tuple[SnapshotSaved, ...] = ()
    digests: tuple[str, str, str] | None = None


def refusals(view: View, facts: Facts) -> list[Event]:
    """Deltas that cannot be merged, each with its reason (P8, R1, R13)."""
    run, staleness = view.run(), view.config().outer.max_staleness
    decided: list[Event] = []
    for delta in view.deltas("undecided", "cut", "void"):
        verdict = facts.verdicts.get(delta.token[0], Verdict())
        if delta.state == "void":
            verdict = Verdict("void", delta.reason)
        elif delta.state == "undecided" and run.version - delta.base_version > staleness:
            verdict = Verdict(
                "stale", f"based on version {delta.base_version}, the run is at {run.version}"
            )
        if verdict.code:
            decided.append(_refusal(delta, verdict))
            decided += _reclaim_rest(view, delta) if verdict.values else []
    return decided


def _reclaim_rest(view: View, delta: Delta) -> list[Event]:
    """DESIGN 6: what else a site trained beside refused values is not to be trusted either."""
    one = view.incarnation(delta.incarnation)
    held = view.held(delta.incarnation)
    if one is None or one.state == "departed" or not held:
        return []
    return [
        LeaseReclaimed(
            incarnation=one.token,
            site=one.site,
            blocks=tuple((block.epoch, block.block) for block in held),
            reason=f"its delta {delta.token[0]} was refused for its values",
        )
    ]


def _refusal(delta: Delta, verdict: Verdict) -> DeltaRefused:
    return DeltaRefused.model_validate(
        {
            "delta": delta.token,
            "site": delta.site,
            "code": verdict.code,
            "values": verdict.values,
            "reason": verdict.reason,
        }
    )


def opening(view: View) -> list[Event]:
    """The next round: quotas sized so that all finish together, from each site's own rate."""
    run, config, timing = view.run(), view.config(), view.timing()
    if run.state != "running" or view.round() is not None or target_reached(view.db):
        return []
    members = [
        one
        for one in view.live()
        if one.state == "live" and not one.drain and policy.usable(view, one)
    ]
    if not members and not view.deltas("undecided"):
        return []
    names = ", ".join(one.site for one in members) or "nobody, to merge what is delivered"
    return [
        RoundOpened(
            round=run.round + 1,
            base_version=run.version,
            quotas=tuple(
                Quota(incarnation=one.token, blocks=blocks)
                for one, blocks in zip(
                    members, quotas(members, config.blocks_per_round), strict=True
                )
            ),
            quorum=config.rounds.quorum,
            grace_ticks=timing.ticks(config.rounds.grace_s),
            deadline_ticks=max(1, timing.ticks(config.rounds.deadline_s)),
            reason=f"version {run.version} is committed; for {names}",
        )
    ]


def quotas(members: list[Incarnation], full: int) -> list[int]:
    """Blocks for each, in proportion to its rate; the fastest, and who has no rate yet, get H's
    worth; each at least one."""
    fastest = max((one.tokens_per_s for one in members), default=0.0)
    return [
        max(1, int(full * one.tokens_per_s / fastest)) if one.tokens_per_s else full
        for one in members
    ]


def expected(view: View, round_: Round) -> list[Incarnation]:
    """Live members that still owe this round a delta: they hold blocks, or will get some."""
    delivered = {delta.incarnation for delta in view.deltas("undecided", "cut")}
    members = view.quotas(round_.round)
    more = view.run().state == "running" and bool(policy.grantable(view, 1))
    return [
        one
        for one in view.live()
        if one.token[0] in members
        and one.token[0] not in delivered
        and (_will_deliver(view, one) or (more and _may_get(view, one, round_, members)))
    ]


def _will_deliver(view: View, one: Incarnation) -> bool:
    """Whether it holds blocks it will train; a paused or stopping run starts no more (R2)."""
    held = view.held(one.token[0])
    if view.run().state == "running":
        return bool(held)
    return any(block.state != LEASED for block in held)


def _may_get(view: View, one: Incarnation, round_: Round, members: dict[int, int]) -> bool:
    return (
        one.state == "live"
        and not one.drain
        and policy.usable(view, one)
        and view.num_granted(one.token[0], round_.round) < members[one.token[0]]
    )


def closing(view: View, facts: Facts) -> list[Event]:
    """The cut: all expected are in; or quorum and grace; or the deadline with a delta (R13)."""
    round_ = view.round()
    if round_ is None or round_.state != "open":
        return []
    deltas = view.deltas("undecided")
    if not deltas or any(delta.token[0] not in facts.verdicts for delta in deltas):
        return []
    reason = _close_reason(view, round_, deltas)
    if not reason:
        return []
    return [
        RoundClosed(
            round=round_.round,
            base_version=round_.base_version,
            deltas=tuple(
                Cut(delta=delta.token, site=delta.site, tokens=delta.tokens, weight=weight)
                for delta, weight in zip(
                    deltas, weights([delta.tokens for delta in deltas]), strict=True
                )
            ),
            tokens=sum(delta.tokens for delta in deltas),
            reason=reason,
        )
    ]


def _close_reason(view: View, round_: Round, deltas: list[Delta]) -> str:
    run, missing = view.run(), expected(view, round_)
    names = ", ".join(one.site for one in missing)
    if not missing:
        return f"all {len(deltas)} expected deltas are in"
    if run.ticks - round_.opened_ticks >= round_.deadline_ticks:
        return f"the deadline of {round_.deadline_ticks} ticks is over; without {names}"
    quorum = quorum_ticks(round_, deltas, run.live)
    if quorum is not None and run.ticks - quorum >= round_.grace_ticks:
        return f"quorum of {round_.quorum} and grace are over; without {names}"
    return ""


def quorum_ticks(round_: Round, deltas: list[Delta], num_live: int) -> int | None:
    """The tick at which the quorum was reached, if it was: at most the live sites (R13)."""
    quorum = max(1, min(round_.quorum, num_live))
    if len(deltas) < quorum:
        return None
    return max(round_.opened_ticks, sorted(delta.ticks for delta in deltas)[quorum - 1])


def committing(view: View, facts: Facts) -> list[Event]:
    """The finished merge of the current cut; a merge of another cut is stale and dropped."""
    round_ = view.round()
    if facts.merged is None or round_ is None or round_.cut != facts.merged.cut:
        return []
    return [facts.merged]


def saving(view: View, facts: Facts) -> list[Event]:
    """Snapshots that are stored, and what need not be kept since."""
    versions = {one.version: one for one in view.versions()}
    fresh: list[Event] = [
        one
        for one in facts.saved
        if one.version in versions and versions[one.version].snapshot_blob is None
    ]
    return fresh or releasing(view)


def releasing(view: View) -> list[Event]:
    """Deltas and updates up to the second-newest snapshot, and older snapshots (DESIGN 6)."""
    if view.config().snapshots.retention == "all":
        return []
    kept = [one.version for one in view.versions() if one.snapshot_blob is not None]
    if len(kept) < 2:
        return []
    horizon = kept[-2]
    needed, old = view.blobs_split(horizon)
    blobs = sorted(old - needed)[:1000]
    if not blobs:
        return []
    return [
        BlobsReleased(
            blobs=tuple(blobs),
            reason=f"versions up to {horizon} are recovered from the snapshots of "
            f"{horizon} and {kept[-1]}",
        )
    ]


def finishing(view: View, facts: Facts) -> list[Event]:
    """The end: the target is reached, or a stop was asked for and everyone has left (R15)."""
    run, round_ = view.run(), view.round()
    stopped = (
        run.state == "stopping"
        and not view.live()
        and not (round_ is not None and (round_.state == "closed" or view.deltas("undecided")))
    )
    reached = target_reached(view.db) and round_ is None
    if not (stopped or reached) or facts.digests is None:
        return []
    newest = view.version(run.version)
    if newest is not None and newest.snapshot_blob is None:
        return []  # the final version is kept whole first
    undecided = view.deltas("undecided")
    num_held = view.num_held()
    what = f"{run.merged_tokens} tokens in {run.version} rounds"
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
            reason=why,
        )
    ]


def decide(view: View, facts: Facts) -> list[Event]:
    """The next append: the first rule, in this order, that has something to say.

    One kind of decision an append, folded before the next: so what frees blocks is never in one
    batch with what grants them (R2), and each reason speaks of a state that is in the log (R5).
    """
    run = view.run()
    if not view.exists() or run.read_only or run.state == "finished":
        return []
    return (
        policy.departures(view)
        or policy.joins(view)
        or refusals(view, facts)
        or committing(view, facts)
        or policy.epochs(view)
        or saving(view, facts)
        or finishing(view, facts)
        or closing(view, facts)
        or opening(view)
        or list(policy.grants(view))
    )
