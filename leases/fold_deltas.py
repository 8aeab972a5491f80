"""Rules of deltas: what a site delivers, and what becomes of what is not merged (R1, R4)."""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry
from eventlog.events import DeltaPublished, DeltaRefused
from leases.books import Books
from leases.states import TRAINED


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
        "num_bytes, norm, max_abs, num_blocks, tokens, first_epoch, first_block, last, reason, "
        "ticks) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ticks FROM run",
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
        books.db.executemany(
            "INSERT OR IGNORE INTO void_blocks VALUES (?, ?, ?)",
            [(entry.record.sequence, block.epoch, block.block) for block in event.blocks],
        )
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
    """The blocks a void delta named, where the incarnation holds them trained since before it."""
    return books.db.execute(
        "SELECT b.epoch, b.block FROM void_blocks v "
        "JOIN blocks b ON b.epoch = v.epoch AND b.block = v.block "
        "WHERE v.delta = ?1 AND b.incarnation = ?2 AND b.state = ?3 AND b.lease < ?1 "
        "ORDER BY b.epoch, b.block",
        (delta, incarnation, TRAINED),
    ).fetchall()


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


def _finite(value: float) -> float:
    """SQLite keeps no NaN; a norm that is none is as good as infinite."""
    return value if value == value else float("inf")


RULES = {"delta.published": published, "delta.refused": refused}
