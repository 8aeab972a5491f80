"""The coordinator's decisions about rounds: pure functions of the lease table and of `Facts`.

A round opens on the newest version, gets deltas, is cut, merged and committed, or waits: with no
delta it stays open. Every condition is asked again at every tick, so no message is depended on
(R13).
"""

from __future__ import annotations

from eventlog.events import (
    Cut,
    DeltaRefused,
    Event,
    LeaseReclaimed,
    Quota,
    RoundClosed,
    RoundOpened,
    shortened,
)
from eventlog.log import MAX_BATCH
from leases import policy
from leases.agenda import Agenda, of
from leases.blocks import weights
from leases.divergence import pausing
from leases.outliers import Guard
from leases.quarantine import quarantines
from leases.rows import Delta, Incarnation, Round
from leases.stealing import steals
from leases.supply import num_grantable
from leases.view import View
from outer.facts import Facts, Verdict
from outer.keeping import finishing, saving


def refusals(view: View, facts: Facts) -> list[Event]:
    """Deltas that cannot be merged, each with its reason (P8, R1, R13)."""
    return refused(view, facts, _refusable(view, facts))


def refused(view: View, facts: Facts, deltas: list[Delta]) -> list[Event]:
    """The refusals among these open deltas, which stand in the order of the log."""
    decided: list[Event] = []
    bad: dict[int, int] = {}  # incarnation: its delta that is refused for its values
    for delta in deltas:
        verdict = _verdict(view, facts, delta)
        spoiler = bad.get(delta.incarnation) or view.spoiled_by(delta)
        if spoiler and not verdict.values and delta.state != "void":
            reason = f"it stands on the same progress as delta {spoiler}, refused for its values"
            verdict = Verdict("follows", reason)
        if verdict.code:
            decided.append(_refusal(delta, verdict))
        if verdict.values:
            decided += [] if delta.incarnation in bad else _reclaim_rest(view, delta)
            bad.setdefault(delta.incarnation, delta.token[0])
        if len(decided) > MAX_BATCH - 2:
            break  # the rest is decided next, a refusal never apart from its reclaim
    return decided


def _refusable(view: View, facts: Facts) -> list[Delta]:
    """Undecided deltas of whoever has one that may be refused, in the order of the log."""
    agenda = of(view)
    owners = set(agenda.suspect)
    for seq in facts.bad():
        delta = view.delta(seq)
        owners |= {delta.incarnation} if delta is not None else set()
    standings = [agenda.standings[seq] for seq in owners if seq in agenda.standings]
    seqs = sorted(delta.seq for one in standings for delta in one.deltas)
    return [delta for seq in seqs if (delta := view.delta(seq)) is not None]


def _verdict(view: View, facts: Facts, delta: Delta) -> Verdict:
    """Why a delta cannot be merged, by the ledger or by its blob."""
    version, staleness = view.run().version, view.config().outer.max_staleness
    if delta.state == "void":
        return Verdict("void", delta.reason)
    found = facts.verdicts.get(delta.token[0], Verdict())
    late = delta.state == "undecided" and version - delta.base_version > staleness
    if late and not found.values:
        return Verdict("stale", f"based on version {delta.base_version}, the run is at {version}")
    return found


def _reclaim_rest(view: View, delta: Delta) -> list[Event]:
    """What else a site trained beside refused values is not to be trusted either."""
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
            "reason": shortened(verdict.reason),
        }
    )


def opening(view: View) -> list[Event]:
    """The next round: quotas sized so that all finish together, from each site's own rate."""
    if view.run().state != "running" or view.round() is not None or view.target_reached():
        return []
    agenda = of(view)
    if not agenda.ready and not agenda.num_undecided:
        return []
    return [opened(view, _named(view, agenda.ready))]


def opened(view: View, members: list[Incarnation]) -> RoundOpened:
    """The next round of these members."""
    run, config, timing = view.run(), view.config(), view.timing()
    names = ", ".join(one.site for one in members) or "nobody, to merge what is delivered"
    return RoundOpened(
        round=run.round + 1,
        base_version=run.version,
        quotas=tuple(
            Quota(incarnation=one.token, blocks=blocks)
            for one, blocks in zip(members, quotas(members, config.blocks_per_round), strict=True)
        ),
        quorum=config.rounds.quorum,
        grace_ticks=timing.ticks(config.rounds.grace_s),
        deadline_ticks=max(1, timing.ticks(config.rounds.deadline_s)),
        reason=shortened(f"version {run.version} is committed; for {names}"),
    )


def quotas(members: list[Incarnation], full: int) -> list[int]:
    """Blocks for each, in proportion to its rate; the fastest, and who has no rate yet, get H's
    worth; each at least one."""
    fastest = max((one.tokens_per_s for one in members), default=0.0)
    return [policy.quota_of(one, fastest, full) for one in members]


def expected(view: View, round_: Round) -> list[Incarnation]:
    """Live members that still owe this round a delta: they hold blocks that they will train (a
    paused or stopping run starts no more, R2), or will get some."""
    return _named(view, _expected(view, of(view)))


def _expected(view: View, agenda: Agenda) -> set[int]:
    more = agenda.seeking and view.run().state == "running" and num_grantable(view, 1)
    return agenda.holding | agenda.seeking if more else agenda.holding


def _named(view: View, seqs: set[int]) -> list[Incarnation]:
    """These incarnations, by site name."""
    found = [one for seq in seqs if (one := view.incarnation(seq)) is not None]
    return sorted(found, key=lambda one: one.site)


def closing(view: View, facts: Facts) -> list[Event]:
    """The cut: all expected are in; or quorum and grace; or the deadline with a delta (R13). Who
    would be in it and is an outlier is refused before (P8)."""
    round_ = view.round()
    if round_ is None or round_.state != "open":
        return []
    agenda = of(view)
    if not agenda.num_undecided or not facts.has_judged(agenda.unjudged):
        return []
    reason = _close_reason(view, round_, agenda)
    deltas = view.deltas("undecided") if reason else []
    if any(delta.token[0] not in facts.verdicts for delta in deltas) or not deltas:
        return []
    if odd := _outliers(view, facts, deltas):
        return odd
    return [cut_of(round_, deltas, reason)]


def cut_of(round_: Round, deltas: list[Delta], reason: str) -> RoundClosed:
    """The cut of a round: these deltas, in this order, with their weights (P5)."""
    return RoundClosed(
        round=round_.round,
        base_version=round_.base_version,
        deltas=tuple(
            Cut(delta=delta.token, site=delta.site, tokens=delta.tokens, weight=weight)
            for delta, weight in zip(
                deltas, weights([delta.tokens for delta in deltas]), strict=True
            )
        ),
        tokens=sum(delta.tokens for delta in deltas),
        reason=shortened(reason),
    )


def _outliers(view: View, facts: Facts, deltas: list[Delta]) -> list[Event]:
    """The refusals of deltas that are too large beside the others (ADR-0009)."""
    norms = {delta.token[0]: facts.verdicts[delta.token[0]].norm for delta in deltas}
    decided: list[Event] = []
    seen: set[int] = set()
    for delta, reason in Guard(view, deltas, norms).outliers():
        decided.append(_refusal(delta, Verdict("outlier", reason)))
        decided += [] if delta.incarnation in seen else _reclaim_rest(view, delta)
        seen.add(delta.incarnation)
        if len(decided) > MAX_BATCH - 2:
            break
    return decided


def _close_reason(view: View, round_: Round, agenda: Agenda) -> str:
    run, missing = view.run(), _expected(view, agenda)
    if not missing:
        num = agenda.num_undecided
        many = f"all {num} expected deltas are in"
        return many if num != 1 else "the one expected delta is in"
    why = ""
    if run.ticks - round_.opened_ticks >= round_.deadline_ticks:
        why = f"the deadline of {round_.deadline_ticks} ticks is over"
    else:
        quorum = quorum_ticks(view, round_)
        if quorum is not None and run.ticks - quorum >= round_.grace_ticks:
            why = f"quorum of {round_.quorum} and grace are over"
    if not why:
        return ""
    return f"{why}; without {', '.join(one.site for one in _named(view, missing))}"


def quorum_ticks(view: View, round_: Round) -> int | None:
    """The tick at which the quorum was reached, if it was: at most the live sites (R13)."""
    ticks = view.quorum_ticks(max(1, min(round_.quorum, view.run().live)))
    return None if ticks is None else max(round_.opened_ticks, ticks)


def committing(view: View, facts: Facts) -> list[Event]:
    """The finished merge of the current cut; a merge of another cut is stale and dropped."""
    round_ = view.round()
    if facts.merged is None or round_ is None or round_.cut != facts.merged.cut:
        return []
    return [facts.merged]


def decide(view: View, facts: Facts, max_grants: int = MAX_BATCH) -> list[Event]:
    """The next append: the first rule, in this order, that has something to say, as much of it as
    one append holds; of grants no more than `max_grants`.

    One kind of decision an append, folded before the next: so what frees blocks is never in one
    batch with what grants them (R2), and each reason speaks of a state that is in the log (R5).
    """
    run = view.run()
    if run.state in ("none", "finished") or run.read_only:
        return []
    decided = (
        policy.departures(view)
        or policy.joins(view)
        or refusals(view, facts)
        or committing(view, facts)
        or list(quarantines(view))
        or policy.epochs(view)
        or saving(view, facts)
        or finishing(view, facts)
        or closing(view, facts)
        or pausing(view)
        or opening(view)
        or list(policy.grants(view, max_grants)[:max_grants])
        or list(steals(view))
    )
    return decided[:MAX_BATCH]
