"""How long a blob of the run can be at most, by what the log says: whoever fetches one asks for no
more (P8). Pure."""

from __future__ import annotations

import sqlite3

_BYTES_A_PARAMETER = 8  # twice fp32, the widest codec, so that a file's head finds room, too
_ROOM_BYTES = 1 << 20  # for the heads of tiny models


def most_bytes(db: sqlite3.Connection, blob: str) -> int | None:
    """Of an update, a snapshot, or the initial parameters: the announced length, and never more
    than tensors of the run's model can need; None: no event names it as one of these."""
    row = db.execute(
        "SELECT num_bytes, sets FROM ("
        "SELECT update_bytes AS num_bytes, 1 AS sets FROM versions WHERE update_blob = ?1 "
        "UNION ALL SELECT snapshot_bytes, 3 FROM versions WHERE snapshot_blob = ?1 "
        "UNION ALL SELECT NULL, 1 FROM run WHERE parameters_blob = ?1) ORDER BY sets DESC LIMIT 1",
        (blob,),
    ).fetchone()
    if row is None:
        return None
    ((num_parameters,),) = db.execute("SELECT num_parameters FROM run").fetchall()
    num_bytes, sets = row
    limit: int = sets * _BYTES_A_PARAMETER * num_parameters + _ROOM_BYTES
    return limit if num_bytes is None else min(num_bytes, limit)
