"""P1, P4, P5 at the three places where they are decided: the cut, the commit, an epoch's close.

Each decision of the current term is judged as it was written, whatever the lease table makes of it:
a block that two commits name was merged twice by whoever wrote them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import cast

from eventlog.codec import Entry
from eventlog.events import Cut, EpochClosed, RoundClosed, RoundCommitted, Token
from leases.anchors import run_statements, violation
from leases.blocks import BlockIndex
from leases.tally import share

_TABLES = """
CREATE TABLE audit_cuts (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, round INTEGER NOT NULL, tokens INTEGER NOT NULL,
    committed INTEGER NOT NULL
);
CREATE TABLE audit_members (cut INTEGER NOT NULL, delta INTEGER NOT NULL);
CREATE INDEX audit_members_cut ON audit_members (cut);
CREATE TABLE audit_merged (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, times INTEGER NOT NULL, first INTEGER NOT NULL,
    PRIMARY KEY (epoch, block)
) WITHOUT ROWID;
CREATE TABLE audit_closed (epoch INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
"""
_BLOCK = re.compile(r"\b\d+:\d+\b")
_MAX_NAMED = 5  # blocks that one violation names


def create(db: sqlite3.Connection) -> None:
    """Make the empty tables."""
    run_statements(db, _TABLES)


def closed(db: sqlite3.Connection, entry: Entry) -> None:
    """A cut: every member delivered by who held its leases (P4), weighted by the ledger (P5)."""
    event, sequence = cast(RoundClosed, entry.event), entry.record.sequence
    tokens = [_member(db, sequence, cut) for cut in event.deltas]
    known = [num for num in tokens if num is not None]
    total = sum(known)
    row = (*entry.token, event.round, total)
    db.execute("INSERT INTO audit_cuts VALUES (?, ?, ?, ?, 0)", row)
    db.executemany(
        "INSERT INTO audit_members VALUES (?, ?)",
        [(sequence, cut.delta[0]) for cut in event.deltas],
    )
    if len(known) < len(tokens):
        return  # a delta that is none has no tokens to weigh by
    if event.tokens != total:
        what = f"the cut of round {event.round} claims {event.tokens} tokens, its blocks have"
        violation(db, "P5", "R15", sequence, f"{what} {total}", f"{total} tokens")
    for cut, num in zip(event.deltas, known, strict=True):
        if (cut.tokens, cut.weight) != (num, num / total):
            what = (
                f"delta {cut.delta[0]} of {cut.site} is weighted {cut.weight:.6g} for {cut.tokens} "
                f"tokens; its blocks have {num} of {total}, which is {num / total:.6g}"
            )
            expected = f"{num} tokens, weight {num / total:.6g}"
            violation(db, "P5", "R15", sequence, what, expected, cut.site)


def _member(db: sqlite3.Connection, sequence: int, cut: Cut) -> int | None:
    """The tokens of a member by the manifest; None where there is no such delta."""
    row = db.execute(
        "SELECT site, tokens, fault, refused FROM audit_deltas WHERE seq = ? AND id = ?", cut.delta
    ).fetchone()
    if row is None:
        what = f"there is no delta {cut.delta[0]} to cut"
        violation(db, "P4", "R3", sequence, what, "deltas that were published", cut.site)
        return None
    site, tokens, fault, refused = row
    if site != cut.site:
        fault = f"it is of {site}, not of {cut.site}"
    if refused:
        fault = "it was refused"
    if fault:
        what, block = f"delta {cut.delta[0]} is cut, but {fault}", _BLOCK.search(fault)
        expected = "a cut without it"
        violation(db, "P4", "R3", sequence, what, expected, site, block[0] if block else "")
    return cast(int, tokens)


def committed(db: sqlite3.Connection, entry: Entry) -> None:
    """A merge: of a cut that stands, once; each of its blocks for the first time (P1)."""
    event, sequence = cast(RoundCommitted, entry.event), entry.record.sequence
    cut = db.execute(
        "SELECT round, tokens, committed FROM audit_cuts WHERE seq = ? AND id = ?", event.cut
    ).fetchone()
    if cut is None:
        what = f"round {event.round} has no cut {event.cut[0]}"
        violation(db, "P4", "R13", sequence, what, "a RoundClosed before it")
        return
    if cut[0] != event.round:
        what = f"round {event.round} commits the cut of round {cut[0]}"
        violation(db, "P1", "R13", sequence, what, f"a cut of round {event.round}")
    if cut[1] != event.tokens:
        what = f"round {event.round} merges {cut[1]} tokens, it says {event.tokens}"
        violation(db, "P5", "R15", sequence, what, f"{cut[1]} tokens")
    again = _merge(db, sequence, event.cut)
    if again:
        blocks = _named([(epoch, block) for epoch, block, _ in again], len(again))
        what = f"round {event.round} merges {blocks} again, merged since {again[0][2]}"
        block = f"{again[0][0]}:{again[0][1]}"
        violation(db, "P1", "R4", sequence, what, "each block once", block=block)
    db.execute("UPDATE audit_cuts SET committed = 1 WHERE seq = ?", (event.cut[0],))


def _merge(db: sqlite3.Connection, sequence: int, cut: Token) -> list[tuple[int, int, int]]:
    """Count every block of the cut; those that were merged before, with where they were first."""
    members = db.execute(
        "SELECT d.site, b.epoch, b.block, d.refused, d.seq FROM audit_members m "
        "JOIN audit_deltas d ON d.seq = m.delta JOIN audit_delta_blocks b ON b.delta = d.seq "
        "WHERE m.cut = ? ORDER BY b.epoch, b.block, d.seq",
        (cut[0],),
    ).fetchall()
    gone = sorted({(delta, site) for site, _, _, is_refused, delta in members if is_refused})
    for delta, site in gone:
        what = f"delta {delta} of {site} is merged though it was refused"
        violation(db, "P4", "R4", sequence, what, "a merge without it", site)
    again = []
    for site, epoch, block, _, _ in members:
        key = (epoch, block)
        first = db.execute(
            "SELECT first FROM audit_merged WHERE epoch = ? AND block = ?", key
        ).fetchone()
        if first:
            again.append((*key, first[0]))
        db.execute(
            "INSERT INTO audit_merged VALUES (?, ?, 1, ?) ON CONFLICT (epoch, block) DO UPDATE SET "
            "times = times + 1",
            (*key, sequence),
        )
        db.execute("DELETE FROM audit_leases WHERE epoch = ? AND block = ? AND phase = 3", key)
        share(db, site, "merged", 1)
    return again


def epoch_closed(db: sqlite3.Connection, entry: Entry, index: BlockIndex) -> None:
    """R15: every block of a closed epoch was merged, or is named as quarantined (P1)."""
    event, sequence = cast(EpochClosed, entry.event), entry.record.sequence
    num, first = _missing(db, event.epoch, index)
    if num:
        what = f"epoch {event.epoch} is closed without {_named(first, num)}"
        block = f"{first[0][0]}:{first[0][1]}"
        expected = "every block merged or quarantined"
        violation(db, "P1", "R15", sequence, what, expected, block=block)
    if event.blocks != index.num_blocks:
        what = f"epoch {event.epoch} has {index.num_blocks} blocks, it says {event.blocks}"
        violation(db, "P1", "R15", sequence, what, f"{index.num_blocks} blocks")
    db.execute("INSERT OR IGNORE INTO audit_closed VALUES (?, ?)", (event.epoch, sequence))


def _missing(
    db: sqlite3.Connection, epoch: int, index: BlockIndex
) -> tuple[int, list[tuple[int, int]]]:
    """How many blocks of an epoch are neither merged nor quarantined, and the first few."""
    done = db.execute(
        "SELECT block FROM audit_merged WHERE epoch = ?1 UNION "
        "SELECT block FROM audit_quarantined WHERE epoch = ?1 ORDER BY block",
        (epoch,),
    )
    num, expected = 0, 0
    first: list[tuple[int, int]] = []
    for block in (*(row[0] for row in done), index.num_blocks):
        gap = range(expected, min(block, index.num_blocks))
        num += len(gap)
        first += [(epoch, one) for one in gap[: _MAX_NAMED - len(first)]]
        expected = block + 1
    return num, first


def _named(blocks: Sequence[tuple[int, int]], num: int) -> str:
    names = ", ".join(f"{epoch}:{block}" for epoch, block in blocks[:_MAX_NAMED])
    more = f" and {num - _MAX_NAMED} more" if num > _MAX_NAMED else ""
    return ("block " if num == 1 else "blocks ") + names + more
