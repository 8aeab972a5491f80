"""What the rules allow the coordinator to do with deltas, blocks and blobs (`leases.rulings`)."""

from __future__ import annotations

from eventlog.events import BlobsReleased, BlockQuarantined, DeltaRefused, RoundClosed
from leases import retention
from leases.grounds import Finding, Standing
from leases.outliers import ROUNDING, Guard
from leases.rows import Delta
from leases.states import LEASED

VALUES = frozenset({"form", "nonfinite", "outlier"})  # refusals for values or form (R14)


def refused(at: Standing, event: DeltaRefused) -> list[Finding]:
    """P8, R14: the code is a cause that the log holds, or one that only a blob can tell."""
    delta, site = at.view.delta(event.delta[0]), event.site
    if delta is None:
        return []
    found, name = [], f"delta {event.delta[0]} of {site} is refused as {event.code!r}"
    if event.values != (event.code in VALUES):
        what = f"{name}, values: {event.values}"
        expected = f"values: {event.code in VALUES}"
        found.append(Finding("P8", "R14", what, expected, site))
    version, limit = at.view.run().version, at.view.config().outer.max_staleness
    late = version - delta.base_version
    if event.code == "void" and delta.state != "void":
        found.append(Finding("P8", "R1", name, "no refusal: the delta holds", site))
    if event.code == "stale" and late <= limit:
        what = f"{name}, based on version {delta.base_version} of {version}"
        expected = f"no refusal: {late} of {limit} versions late"
        found.append(Finding("P8", "R13", what, expected, site))
    if event.code == "follows" and at.view.spoiled_by(delta) is None:
        what = f"{name}, and no earlier delta of its incarnation was refused for values after it"
        found.append(Finding("P8", "R14", what, "no refusal", site))
    if event.code == "outlier":
        _note_bound(at, delta)
    return found


def _note_bound(at: Standing, delta: Delta) -> None:
    """Remember how large it might have been: whether it was larger, its blob tells (`--deep`)."""
    least = None
    for deltas in (at.view.deltas("undecided"), _read(at, at.view.deltas("undecided"))):
        known = {one.token[0]: one for one in (*deltas, delta)}
        norms = {seq: one.norm for seq, one in known.items()}
        bound = Guard(at.view, list(known.values()), norms).bound(delta)
        if bound is not None:
            least = bound.norm if least is None else min(least, bound.norm)
    at.view.db.execute("INSERT OR REPLACE INTO audit_bounds VALUES (?, ?)", (delta.token[0], least))


def _read(at: Standing, deltas: list[Delta]) -> list[Delta]:
    """Those that the coordinator must have read."""
    return [one for one in deltas if one.token[0] <= at.folded]


def closed(at: Standing, event: RoundClosed) -> list[Finding]:
    """R13: everybody's delta that was in, and nobody's time cut short; P8: no outlier."""
    members = {cut.delta[0] for cut in event.deltas}
    found = []
    for delta in _read(at, at.view.deltas("undecided")):
        if delta.token[0] not in members:
            what = f"the cut of round {event.round} leaves out delta {delta.token[0]}, which was in"
            found.append(Finding("P1", "R13", what, "every undecided delta", delta.site))
    deltas = [one for seq in sorted(members) if (one := at.view.delta(seq)) is not None]
    guard = Guard(at.view, deltas, {one.token[0]: one.norm for one in deltas})
    for one in deltas:
        bound = guard.bound(one)
        if bound is not None and one.norm > ROUNDING * bound.norm:
            what = f"delta {one.token[0]} is cut, but {bound.reason(one.norm)}"
            expected = "its refusal as an outlier"
            found.append(Finding("P8", "R14", what, expected, one.site))
    return found + _cut_short(at, event, [one for one in deltas if one.state == "undecided"])


def _cut_short(at: Standing, event: RoundClosed, deltas: list[Delta]) -> list[Finding]:
    """Members that hold blocks they will deliver, before grace and deadline are over."""
    round_, run = at.view.round(), at.view.run()
    if round_ is None or round_.state != "open" or not deltas:
        return []
    quorum = max(1, min(round_.quorum, run.live))
    ticks = sorted(delta.ticks for delta in deltas)
    reached = ticks[quorum - 1] if len(ticks) >= quorum else run.ticks + 1
    reached = max(round_.opened_ticks, reached)
    grace, deadline = reached + round_.grace_ticks, round_.opened_ticks + round_.deadline_ticks
    if run.ticks >= min(grace, deadline):
        return []
    delivered = {delta.incarnation for delta in at.view.deltas("undecided", "cut")}
    found = []
    for seq in at.view.quotas(round_.round):
        one = at.view.incarnation(seq)
        if one is None or one.state == "departed" or seq in delivered or at.unread(one.site):
            continue
        states = {block.state for block in at.view.held(seq)}
        if states - {LEASED} or (states and run.state == "running"):
            what = f"round {event.round} is cut without {one.site}, which holds blocks of it"
            until = (
                f"its delta, or a cut at tick {min(grace, deadline)} of the run (now {run.ticks})"
            )
            found.append(Finding("P2", "R13", what, until, one.site))
    return found


def quarantined(at: Standing, event: BlockQuarantined) -> list[Finding]:
    """R14: in k refused deltas, of two sites where another one lives that could try."""
    rows = at.view.db.execute(
        "SELECT site, num FROM audit_suspects WHERE epoch = ? AND block = ?",
        (event.epoch, event.block),
    ).fetchall()
    num, sites = sum(row[1] for row in rows), {row[0] for row in rows}
    least, live = at.view.config().limits.quarantine, {one.site for one in at.view.live()}
    if num >= least and (len(sites) > 1 or live <= sites):
        return []
    block = f"{event.epoch}:{event.block}"
    what = f"block {block} is quarantined after {num} refused deltas of {len(sites)} sites"
    expected = f"{least} refused deltas, of two sites where another one lives"
    return [Finding("P1", "R14", what, expected, block=block)]


def released(at: Standing, event: BlobsReleased) -> list[Finding]:
    """R20: only what no version behind the horizon needs."""
    view, horizon = at.view, 0
    if view.config().snapshots.retention == "recovery":
        horizon, _ = retention.horizon(view.db)
    needed, _ = retention.split(view.db, horizon)
    needed -= {one.blob for one in view.deltas("undecided") if one.token[0] > at.folded}
    found = []
    for blob in sorted(needed & set(event.blobs))[:5]:
        what = f"blob {blob[:16]} is released, and versions after {horizon} need it"
        found.append(Finding("P3", "R20", what, "its release after two later snapshots"))
    return found
