"""Rules of rounds and versions: what is cut, merged, applied, kept.

P4: whether a delta still counts is decided where it is cut and merged, from the ledger alone.
P5: its weight too.
"""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry
from eventlog.events import (
    BlobsReleased,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    SnapshotSaved,
    VersionApplied,
)
from leases.blocks import weights
from leases.books import Books, capped, finite
from leases.progress import settings
from leases.signing import unsigned

DELTA_ORDER = "site, base_version, first_epoch, first_block, seq"


def opened(books: Books, entry: Entry) -> str:
    event = cast(RoundOpened, entry.event)
    last, version = books.run.round, books.run.version
    if books.run.state != "running":
        return f"the run is {books.run.state}"
    if books.value("SELECT round FROM rounds WHERE state = 'open' OR state = 'closed'") is not None:
        return f"round {last} is not over"
    if event.round != last + 1 or event.base_version != version:
        return (
            f"opens round {event.round} on version {event.base_version}; "
            f"next is round {last + 1} on version {version}"
        )
    books.db.execute(
        "INSERT INTO rounds (round, seq, state, base_version, quorum, grace_ticks, deadline_ticks, "
        "opened_ticks) VALUES (?, ?, 'open', ?, ?, ?, ?, ?)",
        (
            event.round,
            entry.record.sequence,
            event.base_version,
            event.quorum,
            event.grace_ticks,
            event.deadline_ticks,
            books.run.ticks,
        ),
    )
    books.db.executemany(
        "INSERT OR IGNORE INTO members (round, incarnation, quota) VALUES (?, ?, ?)",
        [(event.round, quota.incarnation[0], quota.blocks) for quota in event.quotas],
    )
    books.run.round = event.round
    return ""


def closed(books: Books, entry: Entry) -> str:
    """P4, P5: the members must be undecided, fresh enough, in order, weighted by the ledger."""
    event = cast(RoundClosed, entry.event)
    assert entry.envelope is not None
    row = books.db.execute("SELECT round, base_version FROM rounds WHERE state = 'open'").fetchone()
    if row != (event.round, event.base_version):
        return f"round {event.round} on version {event.base_version} is not open"
    if books.scope is None:
        void = _cut_void(books, event)
        if void:
            return void
    books.db.execute(
        "UPDATE rounds SET state = 'closed', cut_seq = ?, cut_id = ?, tokens = ? WHERE round = ?",
        (entry.record.sequence, entry.envelope.id, event.tokens, event.round),
    )
    books.db.executemany(
        "UPDATE deltas SET state = 'cut', round = ?, weight = ? WHERE seq = ?",
        [(event.round, cut.weight, cut.delta[0]) for cut in event.deltas],
    )
    books.db.executemany(
        "INSERT OR REPLACE INTO cut VALUES (?, ?, ?)",
        [(*cut.delta, cut.site) for cut in event.deltas],
    )
    return ""


def committed(books: Books, entry: Entry) -> str:
    event = cast(RoundCommitted, entry.event)
    if void := unsigned(books, entry):
        return void
    version = books.run.version
    row = books.db.execute(
        "SELECT round, cut_seq, cut_id, tokens FROM rounds WHERE state = 'closed'"
    ).fetchone()
    if row is None or (row[0], (row[1], row[2])) != (event.round, event.cut):
        return f"round {event.round} has no cut {event.cut}"
    if event.version != version + 1 or event.tokens != row[3]:
        return (
            f"commits version {event.version} with {event.tokens} tokens; "
            f"the cut gives version {version + 1} with {row[3]}"
        )
    books.keep(event.update_blob)
    loss = _merge_blocks(books, event.round)
    if books.scope is not None:  # a hub sees only its own deltas; progress is the decision's
        books.run.merged_tokens = capped(books.run.merged_tokens + event.tokens)
    books.run.version = event.version
    books.db.execute(
        "INSERT INTO versions (version, seq, round, update_blob, update_codec, update_bytes, "
        "parameters_digest, momentum_digest, residual_digest, tokens, merged_tokens, loss, "
        "ticks) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            event.version,
            entry.record.sequence,
            event.round,
            event.update_blob,
            event.update_codec,
            event.update_bytes,
            event.parameters_digest,
            event.momentum_digest,
            event.residual_digest,
            event.tokens,
            books.run.merged_tokens,
            loss,
            books.run.ticks,
        ),
    )
    books.db.execute(
        "UPDATE rounds SET state = 'committed', committed_seq = ? WHERE round = ?",
        (entry.record.sequence, event.round),
    )
    books.db.execute("DELETE FROM cut")
    return ""


def applied(books: Books, entry: Entry) -> str:
    """A usable version is one whose digest the site proved; a mismatch is counted, not used."""
    event = cast(VersionApplied, entry.event)
    life, initial = books.writer, "SELECT initial_digest FROM run"
    known = "SELECT parameters_digest FROM versions WHERE version = ?"
    expected = books.value(known, event.version) if event.version else books.value(initial)
    if expected != event.parameters_digest:
        life.mismatches += 1
        return f"version {event.version} has digest {expected}, the site holds another"
    life.version, life.mismatches, life.missing = event.version, 0, None
    life.stall_s += event.stall_s
    books.progressed(life)
    return ""


def snapshot(books: Books, entry: Entry) -> str:
    event = cast(SnapshotSaved, entry.event)
    num = books.db.execute(
        "UPDATE versions SET snapshot_blob = ?, snapshot_bytes = ? WHERE version = ?",
        (event.blob, event.num_bytes, event.version),
    ).rowcount
    if num:
        books.keep(event.blob)
    return "" if num else f"there is no version {event.version}"


def released(books: Books, entry: Entry) -> str:
    event = cast(BlobsReleased, entry.event)
    books.db.executemany(
        "INSERT OR IGNORE INTO released VALUES (?, ?)",
        [(blob, entry.record.sequence) for blob in event.blobs],
    )
    return ""


def _cut_void(books: Books, event: RoundClosed) -> str:
    config, _ = settings(books.db)
    rows = []
    for cut in event.deltas:
        row = books.db.execute(
            f"SELECT state, tokens, {DELTA_ORDER} FROM deltas WHERE seq = ? AND id = ?", cut.delta
        ).fetchone()
        if row is None or row[0] != "undecided":
            return f"delta {cut.delta} is {row[0] if row else 'unknown'}"
        if event.base_version - row[3] > config.outer.max_staleness:
            return f"delta {cut.delta} is based on version {row[3]}, too old for this round"
        if cut.tokens != row[1] or cut.site != row[2]:
            return f"delta {cut.delta} is of {row[2]} with {row[1]} tokens"
        rows.append(row)
    if [row[2:] for row in rows] != sorted({row[2:] for row in rows}):
        return "the deltas are not in order of site, base version, first block"
    exact = weights([row[1] for row in rows])
    if [cut.weight for cut in event.deltas] != exact:
        return f"the weights are not those of the ledger: {exact}"
    if event.tokens != sum(row[1] for row in rows):
        return "the sum of tokens is wrong"
    return ""


def _merge_blocks(books: Books, round_: int) -> float | None:
    """Merge the blocks of the cut, in order; their sites' mean loss by tokens, where known."""
    cut = books.db.execute(
        f"SELECT seq, incarnation FROM deltas WHERE round = ? AND state = 'cut' "
        f"ORDER BY {DELTA_ORDER}",
        (round_,),
    ).fetchall()
    losses: list[tuple[float, int]] = []
    for delta, incarnation in cut:
        held = books.held_by_delta(delta)
        tokens = sum([books.merge(row) for row in held])
        life = books.lives.known(incarnation)
        life.merged_blocks += len(held)
        life.merged_tokens += tokens
        life.refusals = 0
        if life.loss is not None:
            losses.append((life.loss, tokens))
        if books.scope is None:
            books.run.merged_blocks += len(held)
            books.run.merged_tokens += tokens
        books.db.execute("UPDATE deltas SET state = 'merged' WHERE seq = ?", (delta,))
    weight = sum(tokens for _, tokens in losses)
    return finite(sum(loss * tokens for loss, tokens in losses) / weight) if weight else None


RULES = {
    "round.opened": opened,
    "round.closed": closed,
    "round.committed": committed,
    "version.applied": applied,
    "snapshot.saved": snapshot,
    "blobs.released": released,
}
