"""Rules of deltas: what a site delivers, and what becomes of what is not merged (R1, R4)."""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry
from eventlog.events import DeltaPublished, DeltaRefused
from leases.books import Books, finite
from leases.pages import BlockRow
from leases.signing import unsigned
from leases.states import TRAINED


def published(books: Books, entry: Entry) -> str:
    """R1: judged as a whole; one bad block voids it, and the coordinator owes it a refusal."""
    event = cast(DeltaPublished, entry.event)
    assert entry.envelope is not None
    life = books.writer
    void = unsigned(books, entry) or _delta_void(books, event, life.seq)
    first = min((block.epoch, block.block) for block in event.blocks)
    num_blocks = books.index().num_blocks
    known = {(block.epoch, block.block) for block in event.blocks if block.block < num_blocks}
    books.db.execute(
        "INSERT INTO deltas (seq, id, incarnation, site, state, base_version, blob, codec, "
        "num_bytes, norm, max_abs, num_blocks, tokens, first_epoch, first_block, last, reason, "
        "ticks) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.record.sequence,
            entry.envelope.id,
            life.seq,
            life.site,
            "void" if void else "undecided",
            event.base_version,
            event.blob,
            event.codec,
            event.num_bytes,
            finite(event.norm),
            finite(event.max_abs),
            len(event.blocks),
            sum(books.index().tokens(block) for _, block in known),
            *first,
            int(event.last),
            void,
            books.run.ticks,
        ),
    )
    books.keep(event.blob)
    if void:
        rows = [books.block(one.epoch, one.block) for one in event.blocks]
        books.db.executemany(
            "INSERT OR IGNORE INTO void_blocks VALUES (?, ?, ?)",
            [
                (entry.record.sequence, row.epoch, row.block)
                for row in rows
                if row.state == TRAINED and row.incarnation == life.seq
            ],
        )
        return void
    for one in event.blocks:
        books.deliver(books.block(one.epoch, one.block), entry.record.sequence)
    books.progressed(life)
    return ""


def refused(books: Books, entry: Entry) -> str:
    event = cast(DeltaRefused, entry.event)
    if books.scope not in (None, event.site):
        if _in_cut(books, event):
            _void_cut(books)
        return ""
    row = books.db.execute(
        "SELECT state, incarnation FROM deltas WHERE seq = ? AND id = ? AND site = ?",
        (*event.delta, event.site),
    ).fetchone()
    if row is None or row[0] not in ("undecided", "cut", "void"):
        return f"delta {event.delta} of {event.site} is {row[0] if row else 'unknown'}"
    state, incarnation = row
    if state == "cut":
        _void_cut(books)
    if state == "void":  # its blocks were not delivered; the incarnation still holds them
        books.free(_still_held(books, event.delta[0], incarnation), "reclaim")
    else:
        held = books.held_by_delta(event.delta[0])
        if event.values:
            books.db.executemany(
                "INSERT INTO suspects VALUES (?, ?, ?, 1) ON CONFLICT (epoch, block, site) "
                "DO UPDATE SET refusals = refusals + 1",
                [(row.epoch, row.block, event.site) for row in held],
            )
        books.free(held, "refuse")
    books.db.execute(
        "UPDATE deltas SET state = 'refused', reason = ?, spoiled_seq = ? WHERE seq = ?",
        (event.reason, entry.record.sequence if event.values else None, event.delta[0]),
    )
    if event.values:
        books.lives.known(incarnation).refusals += 1
    return ""


def _delta_void(books: Books, event: DeltaPublished, incarnation: int) -> str:
    if event.base_version > books.run.version:
        return f"is based on version {event.base_version}, which does not exist"
    undecided = books.value(
        "SELECT seq FROM deltas WHERE incarnation = ? AND state != 'void' "
        "AND (state = 'undecided' OR state = 'cut' OR state = 'void')",  # as in the index
        incarnation,
    )
    if undecided is not None and not event.last:
        return f"delta {undecided} of the incarnation is undecided"
    seen = set()
    for block in event.blocks:
        key = (block.epoch, block.block)
        row = books.block(*key)
        if key in seen:
            return f"names block {key[0]}:{key[1]} twice"
        seen.add(key)
        if row.state != TRAINED or row.incarnation != incarnation:
            return f"block {key[0]}:{key[1]} is {row.state}, not trained by the writer"
        token = books.token_of(row)
        if token != block.lease:
            return f"lease {block.lease} of block {key[0]}:{key[1]} is not {token}"
        if block.tokens != books.index().tokens(block.block):
            return f"block {key[0]}:{key[1]} has {books.index().tokens(block.block)} tokens"
    return ""


def _still_held(books: Books, delta: int, incarnation: int) -> list[BlockRow]:
    """The trained blocks that a void delta named, where its incarnation still holds them."""
    named = books.db.execute(
        "SELECT epoch, block FROM void_blocks WHERE delta = ? ORDER BY epoch, block", (delta,)
    ).fetchall()
    return [
        row
        for row in (books.block(*key) for key in named)
        if row.state == TRAINED
        and row.incarnation == incarnation
        and row.lease is not None
        and row.lease < delta
    ]


def _in_cut(books: Books, event: DeltaRefused) -> bool:
    found = books.value(
        "SELECT 1 FROM cut WHERE delta = ? AND id = ? AND site = ?", *event.delta, event.site
    )
    return found is not None


def _void_cut(books: Books) -> None:
    """A refusal of a member voids the cut; the round is open again."""
    books.db.execute(
        "UPDATE rounds SET state = 'open', cut_seq = NULL, cut_id = NULL, tokens = 0 "
        "WHERE state = 'closed'"
    )
    books.db.execute(
        "UPDATE deltas SET state = 'undecided', round = NULL, weight = NULL WHERE state = 'cut'"
    )
    books.db.execute("DELETE FROM cut")


RULES = {"delta.published": published, "delta.refused": refused}
