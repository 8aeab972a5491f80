"""Which blobs the log still needs, as the lease table tells it (R20)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from leases.view import View


def horizon(db: sqlite3.Connection) -> tuple[int, str]:
    """The version up to which what led to it may go, and why; 0: nothing may.

    It is the second-newest that has a snapshot, so that the loss of one is borne. But whoever lives
    and holds no version yet finds what it may be fetching, however slow its link is: the snapshot
    that was the newest when it was admitted, and all that follows. R10 bounds for how long.
    """
    rows = db.execute(
        "SELECT version FROM versions WHERE snapshot_blob IS NOT NULL ORDER BY version DESC LIMIT 2"
    ).fetchall()
    if len(rows) < 2:
        return 0, ""
    (newest,), (second,) = rows
    row = db.execute(
        "SELECT starts_from, site FROM incarnations "
        "WHERE state != 'departed' AND state = 'live' AND version IS NULL "  # by the index
        "ORDER BY starts_from, site LIMIT 1"
    ).fetchone()
    if row is None or row[0] >= second:
        whole = f"the snapshots of {second} and {newest}"
        return second, f"versions up to {second} are recovered from {whole}"
    start, site = row
    return start, f"{site} holds no version yet, and may start from that of {start}, kept for it"


def split(db: sqlite3.Connection, horizon: int) -> tuple[set[str], set[str]]:
    """(needed, old) digests of blobs not yet released: `old` serve only versions up to the
    horizon, whose snapshot stays; a blob can be in both."""
    old = _unreleased(
        db,
        "SELECT update_blob FROM versions WHERE version <= ?1 UNION "
        "SELECT snapshot_blob FROM versions WHERE version < ?1 AND snapshot_blob IS NOT NULL "
        "UNION SELECT d.blob FROM deltas d LEFT JOIN versions v ON v.round = d.round "
        "WHERE (d.state = 'merged' AND v.version <= ?1) OR d.state = 'refused'",
        horizon,
    )
    needed = _unreleased(
        db,
        "SELECT update_blob FROM versions WHERE version > ?1 UNION "
        "SELECT snapshot_blob FROM versions WHERE version >= ?1 AND snapshot_blob IS NOT NULL "
        "UNION SELECT parameters_blob FROM run "
        "UNION SELECT d.blob FROM deltas d LEFT JOIN versions v ON v.round = d.round "
        "WHERE d.state IN ('undecided', 'cut') OR (d.state = 'merged' AND v.version > ?1)",
        horizon,
    )
    return needed, old


def loaded(db: sqlite3.Connection) -> dict[str, str]:
    """Blobs that a site needs to come to the newest version, and what each is: the newest snapshot,
    or the initial parameters, and the updates since."""
    row = db.execute(
        "SELECT version, snapshot_blob FROM versions WHERE snapshot_blob IS NOT NULL "
        "ORDER BY version DESC LIMIT 1"
    ).fetchone()
    if row is None:
        ((initial,),) = db.execute("SELECT parameters_blob FROM run").fetchall()
        row = (0, initial)
    version, blob = row
    rows = db.execute(
        "SELECT update_blob, version FROM versions WHERE version > ? ORDER BY version", (version,)
    ).fetchall()
    first = f"the snapshot of version {version}" if version else "the initial parameters"
    return {blob: first} | {one: f"the update of version {of}" for one, of in rows}


def recovered(db: sqlite3.Connection) -> dict[str, str]:
    """Blobs that whoever recovers the newest version needs: `loaded`, and the deltas since."""
    found = loaded(db)
    rows = db.execute(
        "SELECT d.blob, d.site, v.version FROM versions v JOIN deltas d ON d.round = v.round "
        "WHERE d.state = 'merged' AND v.version > (SELECT coalesce(max(version), 0) FROM versions "
        "WHERE snapshot_blob IS NOT NULL) ORDER BY v.version, d.seq"
    ).fetchall()
    return found | {blob: f"a delta of {site} in version {of}" for blob, site, of in rows}


def reported(db: sqlite3.Connection) -> dict[str, str]:
    """Blobs that live sites say they cannot have, each with a site that says so."""
    return dict(
        db.execute(
            "SELECT missing, min(site) FROM incarnations WHERE missing IS NOT NULL "
            "AND state != 'departed' GROUP BY missing ORDER BY missing"
        ).fetchall()
    )


def released(db: sqlite3.Connection) -> list[str]:
    """Digests that a BlobsReleased has named."""
    return [row[0] for row in db.execute("SELECT blob FROM released ORDER BY blob")]


def still_released(db: sqlite3.Connection, blobs: set[str]) -> list[str]:
    """Those of the digests that no later event needs again, sorted."""
    sql = "SELECT 1 FROM released WHERE blob = ?"
    return [blob for blob in sorted(blobs) if db.execute(sql, (blob,)).fetchone()]


def unnamed(db: sqlite3.Connection, blobs: Iterable[str]) -> list[str]:
    """Those of the digests that no event names, or names no more since their release, sorted."""
    named = {
        row[0]
        for row in db.execute(
            "SELECT parameters_blob FROM run UNION SELECT update_blob FROM versions "
            "UNION SELECT snapshot_blob FROM versions WHERE snapshot_blob IS NOT NULL "
            "UNION SELECT blob FROM deltas EXCEPT SELECT blob FROM released"
        )
    }
    return sorted(set(blobs) - named)


def _unreleased(db: sqlite3.Connection, sql: str, horizon: int) -> set[str]:
    rows = db.execute(f"SELECT * FROM ({sql}) EXCEPT SELECT blob FROM released", (horizon,))
    return {row[0] for row in rows}


def first_left(view: View, version: int) -> int | None:
    """Where retention has released what made a version: the first one that can still be rebuilt.
    None where this one can."""
    if view.snapshot_at_most(version) or first_released(view, version) is None:
        return None
    later = (row.version for row in view.versions(after=version))
    return next((one for one in later if view.snapshot_at_most(one)), view.run().version)


def first_released(view: View, version: int) -> int | None:
    """The first version up to this one whose update, and so its deltas, retention has released."""
    names = set(released(view.db))
    gone = (row.version for row in view.versions() if row.update_blob in names)
    return next((one for one in gone if one <= version), None)
