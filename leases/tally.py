"""The audit's second pair of eyes: who held which block, and how often each was merged.

It counts from the events as they stand and shares no code with the lease table's rules. From the
fold it takes one thing: whether a move was overtaken (R1) and so moved nothing. What a cut merges,
how often a block is merged, with which weight, and whether who delivered it held its lease, is
judged here without the fold.
"""

from __future__ import annotations

import sqlite3
from typing import cast

from eventlog.codec import Entry
from eventlog.events import (
    BlockCompleted,
    BlockQuarantined,
    BlockStarted,
    DeltaPublished,
    DeltaRefused,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    RunFinished,
    SiteAdmitted,
    SiteDeparted,
    Token,
)
from leases.anchors import run_statements
from leases.blocks import BlockIndex

LEASED, STARTED, COMPLETED, DELIVERED = range(4)

_TABLES = """
CREATE TABLE audit_lives (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, site TEXT NOT NULL, departed INTEGER NOT NULL
);
CREATE TABLE audit_leases (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, lease INTEGER NOT NULL, lease_id TEXT NOT NULL,
    incarnation INTEGER NOT NULL, site TEXT NOT NULL, phase INTEGER NOT NULL,
    PRIMARY KEY (epoch, block)
) WITHOUT ROWID;
CREATE INDEX audit_leases_held ON audit_leases (incarnation);
CREATE TABLE audit_deltas (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, site TEXT NOT NULL, incarnation INTEGER NOT NULL,
    tokens INTEGER NOT NULL, fault TEXT NOT NULL, void INTEGER NOT NULL,
    refused INTEGER NOT NULL DEFAULT 0, code TEXT
);
CREATE INDEX audit_deltas_refused ON audit_deltas (code) WHERE code IS NOT NULL;
CREATE TABLE audit_delta_blocks (
    delta INTEGER NOT NULL, epoch INTEGER NOT NULL, block INTEGER NOT NULL,
    trained INTEGER NOT NULL, PRIMARY KEY (delta, epoch, block)
) WITHOUT ROWID;
CREATE TABLE audit_quarantined (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (epoch, block)
) WITHOUT ROWID;
CREATE TABLE audit_suspects (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, site TEXT NOT NULL, num INTEGER NOT NULL,
    PRIMARY KEY (epoch, block, site)
) WITHOUT ROWID;
CREATE TABLE audit_bounds (delta INTEGER PRIMARY KEY, norm REAL);
CREATE TABLE audit_epochs (
    epoch INTEGER PRIMARY KEY, granted INTEGER NOT NULL DEFAULT 0,
    reclaimed INTEGER NOT NULL DEFAULT 0, stolen INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE audit_departures (
    seq INTEGER PRIMARY KEY, site TEXT NOT NULL, code TEXT NOT NULL, unstarted INTEGER NOT NULL,
    started INTEGER NOT NULL
);
CREATE TABLE audit_shares (
    site TEXT NOT NULL, what TEXT NOT NULL, num INTEGER NOT NULL, PRIMARY KEY (site, what)
) WITHOUT ROWID;
"""


def create(db: sqlite3.Connection) -> None:
    """Make the empty tables."""
    run_statements(db, _TABLES)


def admitted(db: sqlite3.Connection, entry: Entry) -> None:
    """A new incarnation lives."""
    event = cast(SiteAdmitted, entry.event)
    db.execute("INSERT INTO audit_lives VALUES (?, ?, ?, 0)", (*entry.token, event.site))


def departed(db: sqlite3.Connection, entry: Entry) -> None:
    """R4: it gives back what it had not delivered."""
    event = cast(SiteDeparted, entry.event)
    db.execute("UPDATE audit_lives SET departed = 1 WHERE seq = ?", (event.incarnation[0],))
    where, values = "incarnation = ? AND phase < ?", (event.incarnation[0], DELIVERED)
    unstarted, started = _take_back(db, f"departed ({event.code})", where, values)
    row = (entry.record.sequence, event.site, event.code, unstarted, started)
    db.execute("INSERT INTO audit_departures VALUES (?, ?, ?, ?, ?)", row)


def granted(db: sqlite3.Connection, entry: Entry) -> None:
    """Blocks that nobody holds are held from here on, under this event as their token."""
    event = cast(LeaseGranted, entry.event)
    num = 0
    for block in event.blocks:
        row = (event.epoch, block, *entry.token, event.incarnation[0], event.site, LEASED)
        num += db.execute(
            "INSERT OR IGNORE INTO audit_leases VALUES (?, ?, ?, ?, ?, ?, ?)", row
        ).rowcount
    _count(db, event.epoch, "granted", num)
    share(db, event.site, "granted", num)


def stolen(db: sqlite3.Connection, entry: Entry) -> None:
    """R2: what was not started."""
    event = cast(LeaseStolen, entry.event)
    for block in event.blocks:
        num = db.execute(
            "DELETE FROM audit_leases WHERE epoch = ? AND block = ? AND incarnation = ? "
            "AND phase = ?",
            (event.epoch, block, event.incarnation[0], LEASED),
        ).rowcount
        _count(db, event.epoch, "stolen", num)
        share(db, event.site, "stolen", num)


def reclaimed(db: sqlite3.Connection, entry: Entry) -> None:
    """R4: everything that it had not delivered, or else what it had not started."""
    event = cast(LeaseReclaimed, entry.event)
    held = db.execute(
        "SELECT epoch, block FROM audit_leases WHERE incarnation = ? AND phase < ?",
        (event.incarnation[0], DELIVERED),
    ).fetchall()
    below = DELIVERED if set(held) <= set(event.blocks) else STARTED
    where = "epoch = ? AND block = ? AND incarnation = ? AND phase < ?"
    for epoch, block in sorted(set(event.blocks)):
        _take_back(db, "reclaimed", where, (epoch, block, event.incarnation[0], below))


def started(db: sqlite3.Connection, entry: Entry) -> None:
    """The holder says so, under the token that the block was granted with (R3)."""
    event = cast(BlockStarted, entry.event)
    _move(db, entry, (event.epoch, event.block), event.lease, STARTED)


def completed(db: sqlite3.Connection, entry: Entry) -> None:
    """As `started`."""
    event = cast(BlockCompleted, entry.event)
    _move(db, entry, (event.epoch, event.block), event.lease, COMPLETED)


def published(db: sqlite3.Connection, entry: Entry, index: BlockIndex, void: str) -> None:
    """Remember a delta with what is wrong about it: P4 is judged here, at its own position, and
    counts where the delta is cut. Its tokens are the manifest's, whatever it claims (P5)."""
    event = cast(DeltaPublished, entry.event)
    assert entry.envelope is not None
    writer = entry.envelope.incarnation or (0, "")
    site = entry.record.subject.partition(".")[2]
    fault = _not_alive(db, writer, site)
    for block in event.blocks:
        fault = fault or _not_held(db, (block.epoch, block.block), block.lease, writer)
    blocks = sorted({(block.epoch, block.block) for block in event.blocks})
    if len(blocks) < len(event.blocks):
        fault = fault or "it names a block twice"
    tokens = sum(index.tokens(block) for _, block in blocks if block < index.num_blocks)
    db.execute(
        "INSERT INTO audit_deltas (seq, id, site, incarnation, tokens, fault, void) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*entry.token, site, writer[0], tokens, fault, int(bool(void))),
    )
    for key in blocks:
        db.execute(
            "INSERT INTO audit_delta_blocks SELECT ?1, ?2, ?3, EXISTS (SELECT 1 FROM audit_leases "
            "WHERE epoch = ?2 AND block = ?3 AND incarnation = ?4 AND phase = ?5)",
            (entry.record.sequence, *key, writer[0], COMPLETED),
        )
        if not (fault or void):
            db.execute(
                "UPDATE audit_leases SET phase = ? WHERE epoch = ? AND block = ?",
                (DELIVERED, *key),
            )


def refused(db: sqlite3.Connection, entry: Entry) -> None:
    """Its blocks go back: delivered ones, and of a void delta those that were trained when it came
    and are still held."""
    event = cast(DeltaRefused, entry.event)
    delta = event.delta[0]
    db.execute("UPDATE audit_deltas SET refused = 1, code = ? WHERE seq = ?", (event.code, delta))
    rows = db.execute(
        "SELECT b.epoch, b.block, d.incarnation, d.void FROM audit_deltas d "
        "JOIN audit_delta_blocks b ON b.delta = d.seq WHERE d.seq = ? AND b.trained "
        "ORDER BY b.epoch, b.block",
        (delta,),
    ).fetchall()
    where = "epoch = ? AND block = ? AND incarnation = ? AND lease < ? AND phase = ?"
    for epoch, block, incarnation, void in rows:
        values = (epoch, block, incarnation, delta)
        if void:
            _take_back(db, "void delta", where, (*values, COMPLETED))
        elif event.values:
            db.execute(
                "INSERT INTO audit_suspects VALUES (?, ?, ?, 1) ON CONFLICT (epoch, block, site) "
                "DO UPDATE SET num = num + 1",
                (epoch, block, event.site),
            )
        if not void:
            db.execute(f"DELETE FROM audit_leases WHERE {where}", (*values, DELIVERED))


def quarantined(db: sqlite3.Connection, entry: Entry) -> None:
    """R14: the block will not be merged, and is counted."""
    event = cast(BlockQuarantined, entry.event)
    db.execute("INSERT OR IGNORE INTO audit_quarantined VALUES (?, ?)", (event.epoch, event.block))


def finished(db: sqlite3.Connection, entry: Entry) -> None:
    """R15: everything that is not delivered is returned."""
    assert isinstance(entry.event, RunFinished)
    _take_back(db, "the run ended", "phase < ?", (DELIVERED,))


def share(db: sqlite3.Connection, site: str, what: str, num: int) -> None:
    """Count for the explanation by site."""
    if num:
        db.execute(
            "INSERT INTO audit_shares VALUES (?, ?, ?) ON CONFLICT (site, what) DO UPDATE SET "
            "num = num + excluded.num",
            (site, what, num),
        )


def _take_back(
    db: sqlite3.Connection, cause: str, where: str, values: tuple[int | str, ...]
) -> tuple[int, int]:
    """Blocks go back; how many were not started, and how many were."""
    held = db.execute(
        "SELECT epoch, site, sum(phase = 0), sum(phase > 0) FROM audit_leases "
        f"WHERE {where} GROUP BY epoch, site",
        values,
    ).fetchall()
    for epoch, site, unstarted, started in held:
        _count(db, epoch, "reclaimed", unstarted + started)
        share(db, site, f"reclaimed: {cause}", unstarted + started)
        share(db, site, "unstarted", unstarted)
        share(db, site, "started", started)
    db.execute(f"DELETE FROM audit_leases WHERE {where}", values)
    return sum(row[2] for row in held), sum(row[3] for row in held)


def _count(db: sqlite3.Connection, epoch: int, what: str, num: int) -> None:
    db.execute("INSERT OR IGNORE INTO audit_epochs (epoch) VALUES (?)", (epoch,))
    db.execute(f"UPDATE audit_epochs SET {what} = {what} + ? WHERE epoch = ?", (num, epoch))


def _move(
    db: sqlite3.Connection, entry: Entry, key: tuple[int, int], lease: Token, phase: int
) -> None:
    assert entry.envelope is not None
    writer = entry.envelope.incarnation or (0, "")
    db.execute(
        "UPDATE audit_leases SET phase = ? WHERE epoch = ? AND block = ? AND lease = ? "
        "AND lease_id = ? AND incarnation = ? AND phase = ?",
        (phase, *key, *lease, writer[0], phase - 1),
    )


def _not_alive(db: sqlite3.Connection, writer: Token, site: str) -> str:
    row = db.execute("SELECT id, site, departed FROM audit_lives WHERE seq = ?", (writer[0],))
    found = row.fetchone()
    if found is None or found[0] != writer[1] or found[1] != site:
        return f"{site} was never admitted as incarnation {writer[0]}"
    return f"incarnation {writer[0]} of {site} had departed" if found[2] else ""


def _not_held(db: sqlite3.Connection, key: tuple[int, int], lease: Token, writer: Token) -> str:
    row = db.execute(
        "SELECT lease, lease_id, incarnation, phase FROM audit_leases "
        "WHERE epoch = ? AND block = ?",
        key,
    ).fetchone()
    name = f"block {key[0]}:{key[1]}"
    if row is None:
        return f"nobody held {name}"
    if row[2] != writer[0]:
        return f"{name} was held by incarnation {row[2]}, not by {writer[0]}"
    if row[:2] != lease:
        return f"{name} was held under lease {row[0]}, the delta names {lease[0]}"
    return "" if row[3] == COMPLETED else f"{name} was not trained, or delivered already"
