"""The coordinator's rules said the plain way: each looks at all sites, whatever has changed.

What `outer.rounds.decide` finds by the agenda must be what these find by asking about everybody.
Which departure a site has earned, how a join is answered and how blocks are dealt out is one
site's matter, and asked of the policy itself.
"""

from __future__ import annotations

from eventlog.events import (
    BlobsReleased,
    Event,
    LeaseGranted,
    SiteDeparted,
)
from eventlog.log import MAX_BATCH
from leases import policy, retention
from leases.divergence import pausing
from leases.policy import _deal, _departure, _grant_events, answer, quota_of, usable
from leases.progress import target_reached
from leases.quarantine import quarantines
from leases.rows import Delta, Incarnation, Round
from leases.states import LEASED, TRAINING
from leases.supply import grantable
from leases.view import View
from outer.facts import Facts
from outer.keeping import finishing
from outer.rounds import _outliers, committing, cut_of, opened, refused
from tests.support.naive_steals import steals


def departures(view: View) -> list[Event]:
    """Who has gone, said so, or proved unfit (R4, R8, R11)."""
    timing, run = view.timing(), view.run()
    lost_ticks = timing.lost_ticks(run.live)
    named = {(join.site, join.predecessor) for join in view.waiting_joins() if join.predecessor}
    joining = {join.site for join in view.waiting_joins()}
    found = [
        (one, _departure(view, one, lost_ticks, (one.site, one.token) in named, joining))
        for one in view.live()
    ]
    return [
        SiteDeparted.model_validate({"incarnation": one.token, "site": one.site, **why})
        for one, why in found
        if why
    ]


def joins(view: View) -> list[Event]:
    """Answers to the sites at the door (R11). A join under a live name waits for ticks."""
    decided: list[Event] = []
    for join in view.waiting_joins():
        decided += answer(view, join)
    return decided


def grants(view: View) -> list[LeaseGranted]:
    """Blocks for the members of the open round, up to their quotas, and for who came late."""
    run, round_ = view.run(), view.round()
    if run.state != "running" or round_ is None or round_.state != "open":
        return []
    quotas = view.quotas(round_.round)
    wants: list[tuple[Incarnation, int, int | None]] = []
    for one in view.live():
        if not usable(view, one) or one.drain or one.state != "live":
            continue
        quota = quotas.get(one.token[0])
        late = _late_quota(view, one, quotas) if quota is None else None
        want = (quota or late or 0) - num_granted(view, one.token[0], round_.round)
        if want > 0:
            wants.append((one, want, late))
    blocks = grantable(view, sum(want for _, want, _ in wants))
    decided: list[LeaseGranted] = []
    for (one, _, late), share in zip(wants, _deal(blocks, [w for _, w, _ in wants]), strict=True):
        decided += _grant_events(one, share, late, round_.round)
    return sorted(decided, key=lambda event: event.epoch)  # R15: an epoch before the next


def _late_quota(view: View, one: Incarnation, quotas: dict[int, int]) -> int | None:
    """Who is admitted in mid-round gets the share of a full quota that the round has left; all of
    it where nobody holds a block or has delivered: the round then waits for nobody else (P2)."""
    fastest = max(other.tokens_per_s for other in view.live())
    full = quota_of(one, fastest, view.config().blocks_per_round)
    if one.version != view.run().version:
        return None
    if not view.num_held() and not view.deltas("undecided"):
        return full
    left = sum(
        block.state in (LEASED, TRAINING) for member in quotas for block in view.held(member)
    )
    return int(full * left / max(1, sum(quotas.values()))) or None


def refusals(view: View, facts: Facts) -> list[Event]:
    """Deltas that cannot be merged, each with its reason (P8, R1, R13)."""
    every = view.deltas("undecided", "cut", "void")
    return refused(view, facts, sorted(every, key=lambda one: one.token))


def opening(view: View) -> list[Event]:
    """The next round: quotas sized so that all finish together, from each site's own rate."""
    if view.run().state != "running" or view.round() is not None or target_reached(view.db):
        return []
    members = [
        one for one in view.live() if one.state == "live" and not one.drain and usable(view, one)
    ]
    if not members and not view.deltas("undecided"):
        return []
    return [opened(view, members)]


def expected(view: View, round_: Round) -> list[Incarnation]:
    """Live members that still owe this round a delta: they hold blocks, or will get some."""
    delivered = {delta.incarnation for delta in view.deltas("undecided", "cut")}
    members = view.quotas(round_.round)
    more = view.run().state == "running" and bool(grantable(view, 1))
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
        and usable(view, one)
        and num_granted(view, one.token[0], round_.round) < members[one.token[0]]
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
    if odd := _outliers(view, facts, deltas):
        return odd
    return [cut_of(round_, deltas, reason)]


def _close_reason(view: View, round_: Round, deltas: list[Delta]) -> str:
    run, missing = view.run(), expected(view, round_)
    names = ", ".join(one.site for one in missing)
    if not missing:
        many = f"all {len(deltas)} expected deltas are in"
        return many if len(deltas) != 1 else "the one expected delta is in"
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
    """Deltas and updates up to the second-newest snapshot, and older snapshots; but no further than
    to where a live site that holds no version yet may start from."""
    if view.config().snapshots.retention == "all":
        return []
    kept = [one.version for one in view.versions() if one.snapshot_blob is not None]
    if len(kept) < 2:
        return []
    horizon, who = kept[-2], ""
    for one in view.live():
        ((start,),) = view.db.execute(
            "SELECT starts_from FROM incarnations WHERE seq = ?", (one.token[0],)
        )
        if one.state == "live" and one.version is None and (start, one.site) < (horizon, who):
            horizon, who = start, one.site
    if not horizon:
        return []
    needed, old = retention.split(view.db, horizon)
    blobs = sorted(old - needed)[:1000]
    if not blobs:
        return []
    reason = (
        f"versions up to {horizon} are recovered from the snapshots of {horizon} and {kept[-1]}"
    )
    if who:
        reason = f"{who} holds no version yet, and may start from that of {horizon}, kept for it"
    return [BlobsReleased(blobs=tuple(blobs), reason=reason)]


def num_granted(view: View, incarnation: int, round_: int) -> int:
    """Blocks that count for an open round: held ones, and those delivered in it."""
    ((held,),) = view.db.execute(
        "SELECT count(*) FROM blocks WHERE incarnation = ?", (incarnation,)
    )
    ((opened,),) = view.db.execute("SELECT seq FROM rounds WHERE round = ?", (round_,))
    deltas = view.deltas("undecided", "cut")
    mine = [one for one in deltas if one.incarnation == incarnation and one.token[0] > opened]
    return int(held) + sum(one.num_blocks for one in mine)


def decide(view: View, facts: Facts) -> list[Event]:
    """The next append; the order of the rules is `outer.rounds.decide`'s."""
    run = view.run()
    if not view.exists() or run.read_only or run.state == "finished":
        return []
    decided = (
        departures(view)
        or joins(view)
        or refusals(view, facts)
        or committing(view, facts)
        or list(quarantines(view))
        or policy.epochs(view)
        or saving(view, facts)
        or finishing(view, facts)
        or closing(view, facts)
        or pausing(view)
        or opening(view)
        or list(grants(view))
        or list(steals(view))
    )
    return decided[:MAX_BATCH]
