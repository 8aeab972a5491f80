"""How long a blob of the run is, and can be at most, by what the log says: whoever fetches one asks
for no more (P8). Pure."""

from __future__ import annotations

import sqlite3

_BYTES_A_PARAMETER = 8  # twice fp32, the widest codec, so that a file's head finds room, too
_ROOM_BYTES = 1 << 20  # for the heads of tiny models


def most_bytes(db: sqlite3.Connection, blob: str) -> int | None:
    """Of an update, a snapshot, or the initial parameters: the announced length, and never more
    than tensors of the run's model can need; None: no event names it as one of these."""
    found = _announced(db, blob)
    if found is None:
        return None
    num_bytes, sets, num_parameters = found
    limit = sets * _BYTES_A_PARAMETER * num_parameters + _ROOM_BYTES
    return limit if num_bytes is None else min(num_bytes, limit)


def to_load(db: sqlite3.Connection, blob: str) -> int:
    """The announced length of an update or a snapshot; of the initial parameters about theirs."""
    num_bytes, _, num_parameters = _announced(db, blob) or (0, 0, 0)
    return 4 * num_parameters if num_bytes is None else num_bytes


def _announced(db: sqlite3.Connection, blob: str) -> tuple[int | None, int, int] | None:
    """Its length, if that is said; of how many sets of tensors it is; the model's parameters."""
    found: tuple[int | None, int, int] | None = db.execute(
        "SELECT num_bytes, sets, run.num_parameters FROM run, ("
        "SELECT update_bytes AS num_bytes, 1 AS sets FROM versions WHERE update_blob = ?1 "
        "UNION ALL SELECT snapshot_bytes, 3 FROM versions WHERE snapshot_blob = ?1 "
        "UNION ALL SELECT NULL, 1 FROM run WHERE parameters_blob = ?1) ORDER BY sets DESC LIMIT 1",
        (blob,),
    ).fetchone()
    return found
