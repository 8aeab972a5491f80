"""The tables of the lease fold. The lease table *is* `blocks`.

Rows exist for blocks that were touched; an untouched block is available. Everything here is a
function of the log alone, so equal logs give equal `table_digest`s (P3).
"""

from __future__ import annotations

import hashlib
import sqlite3

from eventlog.codec import pack

SCHEMA_VERSION = 7

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT, created_seq INTEGER, config BLOB, data BLOB, arithmetic BLOB,
    arithmetic_digest TEXT, parameters_blob TEXT, initial_digest TEXT, num_parameters INTEGER,
    state TEXT NOT NULL DEFAULT 'none', reason TEXT NOT NULL DEFAULT '',
    read_only TEXT NOT NULL DEFAULT '',
    term INTEGER NOT NULL DEFAULT 0, holder TEXT NOT NULL DEFAULT '',
    term_ticks INTEGER NOT NULL DEFAULT 0, ticks INTEGER NOT NULL DEFAULT 0,
    decision_seq INTEGER NOT NULL DEFAULT 0, decision_id TEXT NOT NULL DEFAULT '',
    round INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 0,
    merged_tokens INTEGER NOT NULL DEFAULT 0, merged_blocks INTEGER NOT NULL DEFAULT 0,
    outstanding_tokens INTEGER NOT NULL DEFAULT 0, outstanding_blocks INTEGER NOT NULL DEFAULT 0,
    live INTEGER NOT NULL DEFAULT 0, finished_seq INTEGER,
    resumed_version INTEGER NOT NULL DEFAULT 0, lineage BLOB
);
CREATE TABLE sources (
    subject TEXT PRIMARY KEY, n INTEGER NOT NULL, last_id TEXT NOT NULL, last_seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE joins (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, site TEXT NOT NULL, state TEXT NOT NULL,
    predecessor_seq INTEGER, predecessor_id TEXT, successor INTEGER NOT NULL,
    manifest_digest TEXT NOT NULL, arithmetic BLOB NOT NULL, hardware BLOB NOT NULL,
    incarnation_seen INTEGER, reason TEXT NOT NULL DEFAULT '', code TEXT NOT NULL DEFAULT '',
    final INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX joins_waiting ON joins (site) WHERE state = 'waiting';
CREATE TABLE incarnations (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, site TEXT NOT NULL, join_seq INTEGER NOT NULL,
    state TEXT NOT NULL, hardware BLOB NOT NULL,
    code TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
    drain INTEGER NOT NULL DEFAULT 0, last_seq INTEGER NOT NULL, last_term INTEGER NOT NULL,
    last_tick INTEGER NOT NULL, version INTEGER, mismatches INTEGER NOT NULL DEFAULT 0,
    phase TEXT NOT NULL DEFAULT 'starting', step INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0, tokens_per_s REAL NOT NULL DEFAULT 0,
    walltime_left_s REAL, loss REAL, stall_s REAL NOT NULL DEFAULT 0,
    merged_blocks INTEGER NOT NULL DEFAULT 0, merged_tokens INTEGER NOT NULL DEFAULT 0,
    refusals INTEGER NOT NULL DEFAULT 0, departed_seq INTEGER,
    progress_term INTEGER NOT NULL DEFAULT 0, progress_tick INTEGER NOT NULL DEFAULT 0,
    step_s REAL NOT NULL DEFAULT 0, backoff_until INTEGER NOT NULL DEFAULT 0, missing TEXT,
    starts_from INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX incarnations_live ON incarnations (site) WHERE state != 'departed';
CREATE INDEX incarnations_site ON incarnations (site, seq);
CREATE INDEX incarnations_missing ON incarnations (missing)
    WHERE missing IS NOT NULL AND state != 'departed';
CREATE INDEX incarnations_backoff ON incarnations (backoff_until) WHERE backoff_until > 0;
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, blocks INTEGER NOT NULL, cursor INTEGER NOT NULL DEFAULT 0,
    freed INTEGER NOT NULL DEFAULT 0, granted INTEGER NOT NULL DEFAULT 0,
    outstanding INTEGER NOT NULL DEFAULT 0, merged INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0, reclaimed INTEGER NOT NULL DEFAULT 0,
    stolen INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    merged_tokens INTEGER NOT NULL DEFAULT 0, closed_seq INTEGER
);
CREATE INDEX epochs_open ON epochs (epoch) WHERE closed_seq IS NULL;
CREATE TABLE leases (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, incarnation INTEGER NOT NULL);
CREATE TABLE blocks (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, state TEXT NOT NULL,
    lease INTEGER, incarnation INTEGER, delta INTEGER, grants INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (epoch, block)
) WITHOUT ROWID;
CREATE INDEX blocks_held ON blocks (incarnation, state) WHERE incarnation IS NOT NULL;
CREATE INDEX blocks_freed ON blocks (epoch, block) WHERE state = 'available';
CREATE INDEX blocks_delta ON blocks (delta) WHERE delta IS NOT NULL;
CREATE TABLE suspects (
    epoch INTEGER NOT NULL, block INTEGER NOT NULL, site TEXT NOT NULL, refusals INTEGER NOT NULL,
    PRIMARY KEY (epoch, block, site)
) WITHOUT ROWID;
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, seq INTEGER NOT NULL, state TEXT NOT NULL,
    base_version INTEGER NOT NULL, quorum INTEGER NOT NULL, grace_ticks INTEGER NOT NULL,
    deadline_ticks INTEGER NOT NULL, opened_ticks INTEGER NOT NULL,
    cut_seq INTEGER, cut_id TEXT, tokens INTEGER NOT NULL DEFAULT 0, committed_seq INTEGER
);
CREATE INDEX rounds_live ON rounds (state) WHERE state = 'open' OR state = 'closed';
CREATE TABLE members (
    round INTEGER NOT NULL, incarnation INTEGER NOT NULL, quota INTEGER NOT NULL,
    stolen INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (round, incarnation)
) WITHOUT ROWID;
CREATE TABLE deltas (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, incarnation INTEGER NOT NULL, site TEXT NOT NULL,
    state TEXT NOT NULL, base_version INTEGER NOT NULL, blob TEXT NOT NULL, codec TEXT NOT NULL,
    num_bytes INTEGER NOT NULL, norm REAL NOT NULL, max_abs REAL NOT NULL,
    num_blocks INTEGER NOT NULL, tokens INTEGER NOT NULL, first_epoch INTEGER NOT NULL,
    first_block INTEGER NOT NULL, last INTEGER NOT NULL, round INTEGER, weight REAL,
    ticks INTEGER NOT NULL, reason TEXT NOT NULL DEFAULT '', spoiled_seq INTEGER
);
CREATE INDEX deltas_open ON deltas (state, seq)
    WHERE state = 'undecided' OR state = 'cut' OR state = 'void';
CREATE INDEX deltas_owed ON deltas (incarnation, seq)
    WHERE state = 'undecided' OR state = 'cut' OR state = 'void';
CREATE INDEX deltas_spoiled ON deltas (incarnation, seq) WHERE spoiled_seq IS NOT NULL;
CREATE INDEX deltas_round ON deltas (round) WHERE round IS NOT NULL;
CREATE TABLE void_blocks (
    delta INTEGER NOT NULL, epoch INTEGER NOT NULL, block INTEGER NOT NULL,
    PRIMARY KEY (delta, epoch, block)
) WITHOUT ROWID;
CREATE TABLE cut (delta INTEGER PRIMARY KEY, id TEXT NOT NULL, site TEXT NOT NULL);
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, seq INTEGER NOT NULL, round INTEGER NOT NULL,
    update_blob TEXT NOT NULL, update_codec TEXT NOT NULL, update_bytes INTEGER NOT NULL,
    parameters_digest TEXT NOT NULL, momentum_digest TEXT NOT NULL, residual_digest TEXT NOT NULL,
    tokens INTEGER NOT NULL, merged_tokens INTEGER NOT NULL, loss REAL, ticks INTEGER NOT NULL,
    snapshot_blob TEXT, snapshot_bytes INTEGER
);
CREATE TABLE named_keys (
    subject TEXT NOT NULL, key TEXT NOT NULL, dropped INTEGER NOT NULL,
    PRIMARY KEY (subject, key)
) WITHOUT ROWID;
CREATE TABLE released (blob TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE evaluations (
    seq INTEGER PRIMARY KEY, version INTEGER NOT NULL, source TEXT NOT NULL, loss REAL NOT NULL,
    perplexity REAL NOT NULL, bits_per_byte REAL NOT NULL, num_tokens INTEGER NOT NULL
);
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, agent TEXT NOT NULL, seq INTEGER NOT NULL, state TEXT NOT NULL,
    job_id TEXT, nodes INTEGER NOT NULL, walltime_s INTEGER NOT NULL, partition TEXT, account TEXT,
    chain INTEGER NOT NULL, place INTEGER NOT NULL, after TEXT, reason TEXT NOT NULL,
    intended_at INTEGER, not_before INTEGER, expected_at INTEGER,
    phase TEXT NOT NULL DEFAULT '', why_waiting TEXT NOT NULL DEFAULT '', start_said INTEGER,
    started_at INTEGER, end_by INTEGER, ended_at INTEGER,
    outcome TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE looks (
    agent TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL,
    id TEXT NOT NULL, at REAL NOT NULL, said BLOB NOT NULL, PRIMARY KEY (agent, kind, key)
) WITHOUT ROWID;
"""

TABLES = tuple(line.split()[2] for line in _TABLES.splitlines() if line.startswith("CREATE TABLE"))


def create(db: sqlite3.Connection) -> None:
    """Make the empty tables. Within the caller's transaction."""
    for statement in _TABLES.split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute("INSERT INTO run (id) VALUES (1)")


def table_digest(db: sqlite3.Connection) -> str:
    """sha256 over all rows of all tables in canonical order (P3): equal tables, equal digests."""
    whole = hashlib.sha256()
    for table in TABLES:
        columns = db.execute(f"SELECT name, pk FROM pragma_table_info('{table}')").fetchall()
        keys = [str(name) for name, pk in sorted(columns, key=lambda column: column[1]) if pk]
        whole.update(pack([table, [str(name) for name, _ in columns]]))
        for row in db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)}"):
            whole.update(pack(list(row)))
    return whole.hexdigest()
