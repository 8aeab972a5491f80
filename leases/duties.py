"""What the coordinator owed and did not do, while it ticked: liveness that a log can prove (P2).

A coordinator that ticks is alive, and asks itself at every tick what is due (R13). What rests on
the log alone it must decide at once; what needs blobs may take as long as the run's configuration
allows for a transfer. Whoever leaves something undone for K ticks more is found. Looked at every
few ticks, and only counted within one term: a successor begins anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from eventlog.config import Timing
from eventlog.events import CoordinatorTick, Event
from leases import policy
from leases.divergence import diverged
from leases.grounds import Finding
from leases.view import View

EVERY = Timing.BASE_K  # ticks between two looks

_TABLES = """
CREATE TABLE audit_owed (
    key TEXT PRIMARY KEY, since INTEGER NOT NULL, said INTEGER NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Duty:
    """Something due now. `key` tells it from others; `ticks`: for how long it may stay so."""

    key: str
    ticks: int
    finding: Finding


def create(db: sqlite3.Connection) -> None:
    """Make the empty table. Within the caller's transaction."""
    db.execute(_TABLES)


def elected(db: sqlite3.Connection) -> None:
    """A new coordinator has all its time."""
    db.execute("DELETE FROM audit_owed")


def looks(event: Event) -> bool:
    """Whether it is looked at what is due: every few ticks."""
    return isinstance(event, CoordinatorTick) and event.tick % EVERY == 0


def ticked(db: sqlite3.Connection) -> list[Finding]:
    """What is overdue at a tick that was just folded; each thing once."""
    view = View(db)
    run = view.run()
    if not view.exists() or run.state == "finished":
        return []
    known = {key: (since, said) for key, since, said in db.execute("SELECT * FROM audit_owed")}
    now = {duty.key: duty for duty in _due(view)}
    db.executemany("DELETE FROM audit_owed WHERE key = ?", [(k,) for k in known.keys() - now])
    found = []
    for key, duty in now.items():
        since, said = known.get(key, (run.ticks, 0))
        late = run.ticks - since > duty.ticks
        if late and not said:
            found.append(duty.finding)
        row = (key, since, int(said or late))
        db.execute("INSERT OR REPLACE INTO audit_owed VALUES (?, ?, ?)", row)
    return found


def _due(view: View) -> Iterator[Duty]:
    timing = view.timing()
    k = timing.lost_ticks(view.run().live)
    transfer = timing.ticks(max(timing.lease_s, view.config().limits.transfer_s))
    yield from _sites(view, k)
    yield from _deltas(view, k)
    yield from _rounds(view, k, transfer)


def _sites(view: View, k: int) -> Iterator[Duty]:
    """R4, R8, R11: departures and answers to joins."""
    for one in view.live():
        name = f"incarnation {one.token[0]}"
        if one.silent_ticks >= k:
            what = f"{name} is silent for {one.silent_ticks} ticks and not departed"
            yield _duty(f"silent {name}", k, "R8", what, f"its departure after K = {k}", one.site)
        elif one.state == "departing":
            what = f"{name} said that it leaves, and is not departed"
            yield _duty(f"leaving {name}", k, "R4", what, "its departure", one.site)
    for join in view.waiting_joins():
        due = policy.answer(view, join)
        if due:
            what, expected = f"the join {join.token[0]} is not answered", f"{due[0].type}"
            yield _duty(f"join {join.token[0]}", k, "R11", what, expected, join.site)


def _deltas(view: View, k: int) -> Iterator[Duty]:
    """R1, R13: refusals that the log alone gives cause for."""
    version, limit = view.run().version, view.config().outer.max_staleness
    for one in view.deltas("void", "undecided"):
        name = f"delta {one.token[0]}"
        if one.state == "void":
            what = f"{name} is void and not refused"
            yield _duty(name, k, "R1", what, "its refusal", one.site)
        elif version - one.base_version > limit:
            what = f"{name} is {version - one.base_version} versions late and not refused"
            yield _duty(name, k, "R13", what, "its refusal as stale", one.site)


def _rounds(view: View, k: int, transfer: int) -> Iterator[Duty]:
    """R13, R15: a round opens, hands out blocks, is cut, is committed; an epoch closes."""
    run, round_ = view.run(), view.round()
    for row in view.epochs():
        if row["closed_seq"] is None and row["merged"] + row["quarantined"] == row["blocks"]:
            what = f"epoch {row['epoch']} is merged and not closed"
            yield _duty(f"epoch {row['epoch']}", k, "R15", what, "its close")
    if run.state == "running" and (found := diverged(view)) is not None:
        yield _duty("pause", k, "R2", f"the run goes on with {found.why}", "its pause")
    if round_ is None:
        if run.state == "running" and not view.target_reached() and _anybody(view):
            what = f"no round is open after version {run.version}, and sites wait"
            yield _duty("opening", k, "R13", what, f"round {run.round + 1}")
        return
    name = f"round {round_.round}"
    if round_.state == "closed":
        what = f"the cut of {name} is not committed"
        yield _duty(f"commit {name}", k + 2 * transfer, "R13", what, "its commit")
        return
    if view.deltas("undecided") and (why := _must_close(view)):
        what = f"{name} is not cut though {why}"
        yield _duty(f"cut {name}", k + transfer, "R13", what, "its cut")
    if run.state == "running" and policy.grantable(view, 1):
        for seq, site in _starving(view, round_.round):
            what = f"{site} holds no block of {name}, has a quota, and gets none"
            yield _duty(f"grant {seq}", k, "R13", what, "a grant: blocks are available", site)


def _anybody(view: View) -> bool:
    return any(
        one.state == "live" and not one.drain and policy.usable(view, one) for one in view.live()
    )


def _must_close(view: View) -> str:
    """Why the open round, which has a delta, is due; '' where it may wait."""
    round_, run = view.round(), view.run()
    assert round_ is not None
    if run.ticks - round_.opened_ticks >= round_.deadline_ticks:
        return "its deadline is over"
    delivered = {delta.incarnation for delta in view.deltas("undecided")}
    members = view.quotas(round_.round).keys()
    waits = any(one.token[0] not in delivered for one in view.live() if one.token[0] in members)
    return "" if waits else "everybody has delivered"


def _starving(view: View, round_: int) -> list[tuple[int, str]]:
    """Members that could train and have nothing to, and delivered nothing in this round."""
    staleness = view.config().outer.max_staleness
    return view.db.execute(
        "SELECT i.seq, i.site FROM members m JOIN incarnations i ON i.seq = m.incarnation, run "
        "WHERE m.round = ?1 AND m.quota > 0 AND i.state = 'live' AND NOT i.drain "
        "AND run.version - i.version <= ?2 "
        "AND NOT EXISTS (SELECT 1 FROM blocks WHERE incarnation = i.seq) "
        "AND NOT EXISTS (SELECT 1 FROM deltas d WHERE d.incarnation = i.seq "
        "AND d.state IN ('undecided', 'cut', 'void')) ORDER BY i.seq",
        (round_, staleness),
    ).fetchall()


def _duty(key: str, ticks: int, rule: str, what: str, expected: str, site: str = "") -> Duty:
    return Duty(key, ticks, Finding("P2", rule, what, expected, site))
