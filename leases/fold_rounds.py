"""Rules of rounds, deltas and versions: what is delivered, cut, merged, applied, kept.

P4: whether a delta still counts is decided where it is cut and merged, from the ledger alone.
P5: its weight too.
"""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry, unpack
from eventlog.config import RunConfig
from eventlog.events import (
    BlobsReleased,
    DeltaPublished,
    DeltaRefused,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    SnapshotSaved,
    VersionApplied,
)
from leases.blocks import weights
from leases.books import Books
from leases.states import TRAINED

DELTA_ORDER = "site, base_version, first_epoch, first_block, seq"


def opened(books: Books, entry: Entry) -> str:
    event = cast(RoundOpened, entry.event)
    last, version, state, ticks = books.db.execute(
        "SELECT round, version, state, ticks FROM run"
    ).fetchone()
    if state != "running":
        return f"the run is {state}"
    if books.value("SELECT round FROM rounds WHERE state IN ('open', 'closed')") is not None:
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
            ticks,
        ),
    )
    books.db.executemany(
        "INSERT OR IGNORE INTO members VALUES (?, ?, ?)",
        [(event.round, quota.incarnation[0], quota.blocks) for quota in event.quotas],
    )
    books.db.execute("UPDATE run SET round = ?", (event.round,))
    return ""


def published(books: Books, entry: Entry) -> str:
    """R1: judged as a whole; one bad block voids it, and the coordinator owes it a refusal."""
    event = cast(DeltaPublished, entry.event)
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    void = _delta_void(books, event, entry.envelope.incarnation[0])
    first = min((block.epoch, block.block) for block in event.blocks)
    num_blocks = books.index().num_blocks
    known = [block.block for block in event.blocks if block.block < num_blocks]
    books.db.execute(
        "INSERT INTO deltas (seq, id, incarnation, site, state, base_version, blob, codec, "
        "num_bytes, norm, max_abs, num_blocks, tokens, first_epoch, first_block, last, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.record.sequence,
            entry.envelope.id,
            entry.envelope.incarnation[0],
            entry.record.subject.partition(".")[2],
            "void" if void else "undecided",
            event.base_version,
            event.blob,
            event.codec,
            event.num_bytes,
            _finite(event.norm),
            _finite(event.max_abs),
            len(event.blocks),
            sum(books.index().tokens(block) for block in known),
            *first,
            int(event.last),
            void,
        ),
    )
    if void:
        return void
    for block in event.blocks:
        books.deliver(block.epoch, block.block, entry.record.sequence)
    return ""


def refused(books: Books, entry: Entry) -> str:
    event = cast(DeltaRefused, entry.event)
    if books.scope not in (None, event.site):
        _void_cut(books, event.delta[0])
        return ""
    row = books.db.execute(
        "SELECT state, incarnation FROM deltas WHERE seq = ? AND id = ?", event.delta
    ).fetchone()
    if row is None or row[0] not in ("undecided", "cut", "void"):
        return f"delta {event.delta} is {row[0] if row else 'unknown'}"
    state, incarnation = row
    if state == "cut":
        _void_cut(books, event.delta[0])
    if state == "void":  # its blocks were not delivered; the incarnation still holds them
        books.free(_still_held(books, event.delta[0], incarnation), "reclaim", "reclaimed")
    else:
        held = books.db.execute(
            "SELECT epoch, block FROM blocks WHERE delta = ? ORDER BY epoch, block",
            (event.delta[0],),
        ).fetchall()
        if event.values:
            books.db.execute(
                "UPDATE blocks SET refusals = refusals + 1 WHERE delta = ?", (event.delta[0],)
            )
        books.free(held, "refuse", "refused")
    books.db.execute(
        "UPDATE deltas SET state = 'refused', reason = ? WHERE seq = ?",
        (event.reason, event.delta[0]),
    )
    if event.values:
        books.db.execute(
            "UPDATE incarnations SET refusals = refusals + 1 WHERE seq = ?", (incarnation,)
        )
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
    return ""


def committed(books: Books, entry: Entry) -> str:
    event = cast(RoundCommitted, entry.event)
    version = cast(int, books.run("version"))
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
    _merge_blocks(books, event.round)
    loss = books.value(
        "SELECT sum(i.loss * d.tokens) / sum(d.tokens) FROM deltas d "
        "JOIN incarnations i ON i.seq = d.incarnation "
        "WHERE d.round = ? AND d.state = 'merged' AND i.loss IS NOT NULL",
        event.round,
    )
    if books.scope is not None:
        _merge_unseen(books, event)
    books.db.execute("UPDATE run SET version = ?", (event.version,))
    books.db.execute(
        "INSERT INTO versions (version, seq, round, update_blob, update_codec, update_bytes, "
        "parameters_digest, momentum_digest, residual_digest, tokens, merged_tokens, loss) "
        "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, merged_tokens, ? FROM run",
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
            loss,
        ),
    )
    books.db.execute(
        "UPDATE rounds SET state = 'committed', committed_seq = ? WHERE round = ?",
        (entry.record.sequence, event.round),
    )
    return ""


def applied(books: Books, entry: Entry) -> str:
    """A usable version is one whose digest the site proved; a mismatch is counted, not used."""
    event = cast(VersionApplied, entry.event)
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    expected = books.value(
        "SELECT parameters_digest FROM versions WHERE version = ?", event.version
    ) or (books.run("initial_digest") if event.version == 0 else None)
    seq = entry.envelope.incarnation[0]
    if expected != event.parameters_digest:
        books.db.execute(
            "UPDATE incarnations SET mismatches = mismatches + 1 WHERE seq = ?", (seq,)
        )
        return f"version {event.version} has digest {expected}, the site holds another"
    books.db.execute(
        "UPDATE incarnations SET version = ?, mismatches = 0, stall_s = stall_s + ? WHERE seq = ?",
        (event.version, event.stall_s, seq),
    )
    return ""


def snapshot(books: Books, entry: Entry) -> str:
    event = cast(SnapshotSaved, entry.event)
    num = books.db.execute(
        "UPDATE versions SET snapshot_blob = ?, snapshot_bytes = ? WHERE version = ?",
        (event.blob, event.num_bytes, event.version),
    ).rowcount
    return "" if num else f"there is no version {event.version}"


def released(books: Books, entry: Entry) -> str:
    event = cast(BlobsReleased, entry.event)
    books.db.executemany(
        "INSERT OR IGNORE INTO released VALUES (?, ?)",
        [(blob, entry.record.sequence) for blob in event.blobs],
    )
    return ""


def _delta_void(books: Books, event: DeltaPublished, incarnation: int) -> str:
    if event.base_version > cast(int, books.run("version")):
        return f"is based on version {event.base_version}, which does not exist"
    undecided = books.value(
        "SELECT seq FROM deltas WHERE incarnation = ? AND (state = 'cut' OR state = 'undecided')",
        incarnation,
    )
    if undecided is not None and not event.last:
        return f"delta {undecided} of the incarnation is undecided"
    seen = set()
    for block in event.blocks:
        key = (block.epoch, block.block)
        state, lease, holder, _ = books.block(*key)
        if key in seen:
            return f"names block {key[0]}:{key[1]} twice"
        seen.add(key)
        if state != TRAINED or holder != incarnation:
            return f"block {key[0]}:{key[1]} is {state}, not trained by the writer"
        row = books.db.execute("SELECT seq, id FROM leases WHERE seq = ?", (lease,)).fetchone()
        if row != block.lease:
            return f"lease {block.lease} of block {key[0]}:{key[1]} is not {row}"
        if block.tokens != books.index().tokens(block.block):
            return f"block {key[0]}:{key[1]} has {books.index().tokens(block.block)} tokens"
    return ""


def _still_held(books: Books, delta: int, incarnation: int) -> list[tuple[int, int]]:
    """All trained blocks of the incarnation: a void delta's progress cannot be told apart."""
    return [(e, b) for e, b, state in books.held(incarnation) if state == TRAINED]


def _void_cut(books: Books, delta: int) -> None:
    """DESIGN 6: a refusal of a member voids the cut; the round is open again."""
    row = books.db.execute(
        "SELECT r.round FROM rounds r JOIN deltas d ON d.round = r.round "
        "WHERE d.seq = ? AND r.state = 'closed'",
        (delta,),
    ).fetchone()
    if row is None:
        return
    books.db.execute(
        "UPDATE rounds SET state = 'open', cut_seq = NULL, cut_id = NULL, tokens = 0 "
        "WHERE round = ?",
        row,
    )
    books.db.execute(
        "UPDATE deltas SET state = 'undecided', round = NULL, weight = NULL "
        "WHERE round = ? AND state = 'cut'",
        row,
    )


def _cut_void(books: Books, event: RoundClosed) -> str:
    config = RunConfig.model_validate(unpack(cast(bytes, books.run("config"))))
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


def _merge_blocks(books: Books, round_: int) -> None:
    cut = books.db.execute(
        f"SELECT seq, incarnation FROM deltas WHERE round = ? AND state = 'cut' "
        f"ORDER BY {DELTA_ORDER}",
        (round_,),
    ).fetchall()
    for delta, incarnation in cut:
        held = books.db.execute(
            "SELECT epoch, block FROM blocks WHERE delta = ? ORDER BY epoch, block", (delta,)
        ).fetchall()
        tokens = sum([books.merge(epoch, block) for epoch, block in held])
        books.db.execute(
            "UPDATE incarnations SET merged_blocks = merged_blocks + ?, "
            "merged_tokens = merged_tokens + ?, refusals = 0 WHERE seq = ?",
            (len(held), tokens, incarnation),
        )
        if books.scope is None:
            books.db.execute(
                "UPDATE run SET merged_blocks = merged_blocks + ?, "
                "merged_tokens = merged_tokens + ?",
                (len(held), tokens),
            )
        books.db.execute("UPDATE deltas SET state = 'merged' WHERE seq = ?", (delta,))


def _merge_unseen(books: Books, event: RoundCommitted) -> None:
    """A hub sees only its own deltas; the run's progress it takes from the decision."""
    books.db.execute("UPDATE run SET merged_tokens = merged_tokens + ?", (event.tokens,))


def _finite(value: float) -> float:
    """SQLite keeps no NaN; a norm that is none is as good as infinite."""
    return value if value == value else float("inf")


RULES = {
    "round.opened": opened,
    "delta.published": published,
    "delta.refused": refused,
    "round.closed": closed,
    "round.committed": committed,
    "version.applied": applied,
    "snapshot.saved": snapshot,
    "blobs.released": released,
}
