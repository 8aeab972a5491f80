"""Rules of leases and blocks: grant, start, complete, steal, reclaim, quarantine, epochs.

In a grant, steal or start each block is judged by itself (R1): what does not hold is skipped and
named. A grant is as good as it is written, whatever a site says meanwhile, so a hub may trust it
(R2): one that a departure overtook stands too, and the departure returns its blocks. Were it void,
the next epoch's grants in the same append would be (R15), and hubs could not see it.
"""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry
from eventlog.events import (
    BlockCompleted,
    BlockQuarantined,
    BlockStarted,
    EpochClosed,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    Token,
)
from leases.books import Books, capped
from leases.pages import BlockRow, LeaseRow
from leases.states import AVAILABLE, IN_PART, LEASED, TRAINING, UNDELIVERED

MIN_BLOCK_S = 1e-6  # no block takes less: a rate stays a number one can divide by


def granted(books: Books, entry: Entry) -> str:
    event = cast(LeaseGranted, entry.event)
    assert entry.envelope is not None
    if books.scope not in (None, event.site):
        return ""
    void = books.not_of(event.site, event.incarnation)
    if void:
        return void
    if books.run.state != "running":
        return f"the run is {books.run.state}"
    if books.scope is None and event.epoch and not _exhausted(books, event.epoch - 1):
        return f"epoch {event.epoch - 1} still has blocks available"
    seq, num_blocks = event.incarnation[0], books.index().num_blocks
    skipped: list[str] = []
    given: set[int] = set()
    for block in event.blocks:
        state = books.block(event.epoch, block).state if block < num_blocks else "not in the epoch"
        if state == AVAILABLE and block not in given:
            given.add(block)
        else:
            skipped.append(f"{event.epoch}:{block} is {state}")
    if not given:
        return _in_part(skipped, len(event.blocks))
    books.leases.add(LeaseRow(entry.record.sequence, entry.envelope.id, seq))
    for block in sorted(given):
        books.grant(event.epoch, block, entry.record.sequence, seq)
    if event.quota is not None:
        books.db.execute(
            "INSERT OR IGNORE INTO members (round, incarnation, quota) "
            "SELECT round, ?, ? FROM rounds WHERE state = 'open'",
            (seq, event.quota),
        )
    return _in_part(skipped, len(event.blocks))


def stolen(books: Books, entry: Entry) -> str:
    """R2: only unstarted blocks can be stolen."""
    event = cast(LeaseStolen, entry.event)
    if books.scope not in (None, event.site):
        return ""
    void = books.not_of(event.site, event.incarnation)
    if void:
        return void
    skipped: list[str] = []
    taken: list[BlockRow] = []
    for block in event.blocks:
        row = books.block(event.epoch, block)
        if row.state == LEASED and row.incarnation == event.incarnation[0] and row not in taken:
            taken.append(row)
        else:
            skipped.append(f"{event.epoch}:{block} is {row.state}, not an unstarted one of it")
    books.free(taken, "steal")
    if event.to is not None and taken:
        _shift_quota(books, event.incarnation, event.to, len(taken))
    return _in_part(skipped, len(event.blocks))


def _shift_quota(books: Books, victim: Token, thief: Token, num: int) -> None:
    """What was stolen in the open round is the thief's to be granted, not the victim's."""
    books.db.execute(
        "UPDATE members SET quota = max(0, quota - ?1), stolen = stolen + ?1 "
        "WHERE incarnation = ?2 AND round IN (SELECT round FROM rounds WHERE state = 'open')",
        (num, victim[0]),
    )
    if books.live(thief) is not None:
        books.db.execute(
            "INSERT INTO members (round, incarnation, quota) "
            "SELECT round, ?, ? FROM rounds WHERE state = 'open' ON CONFLICT "
            "(round, incarnation) DO UPDATE SET quota = quota + excluded.quota",
            (thief[0], num),
        )


def reclaimed(books: Books, entry: Entry) -> str:
    """R4: from a live incarnation all undelivered blocks, where all are named, else the unstarted
    ones of those named: of half-reclaimed local progress the rest could not be told apart."""
    event = cast(LeaseReclaimed, entry.event)
    if books.scope not in (None, event.site):
        return ""
    void = books.not_of(event.site, event.incarnation)
    if void:
        return void
    held = {(row.epoch, row.block): row for row in books.held(event.incarnation[0])}
    named = sorted(set(event.blocks))
    whole = held.keys() <= set(named)
    taken = [key for key in named if key in held and (whole or held[key].state == LEASED)]
    skipped = [
        f"{e}:{block} is {held[e, block].state if (e, block) in held else 'not held by it'}, "
        "and not all are taken"
        for e, block in sorted(set(named) - set(taken))
    ]
    books.free([held[key] for key in taken], "reclaim")
    return _in_part(skipped, len(named))


def started(books: Books, entry: Entry) -> str:
    event = cast(BlockStarted, entry.event)
    row = books.block(event.epoch, event.block)
    void = _own(books, row, event.lease, LEASED)
    if not void:
        books.move(row, "start")
        books.progressed(books.writer)
    return void


def completed(books: Books, entry: Entry) -> str:
    event = cast(BlockCompleted, entry.event)
    row = books.block(event.epoch, event.block)
    void = _own(books, row, event.lease, TRAINING)
    if void:
        return void
    books.move(row, "complete")
    life, tokens = books.writer, books.index().tokens(event.block)
    life.loss = event.loss if event.loss == event.loss else None
    life.tokens = capped(life.tokens + tokens)
    life.phase = "training"
    if event.seconds:
        life.tokens_per_s = tokens / max(event.seconds, MIN_BLOCK_S)
    books.progressed(life)
    return ""


def quarantined(books: Books, entry: Entry) -> str:
    event = cast(BlockQuarantined, entry.event)
    if books.scope is not None:
        return ""
    if books.epochs.get(event.epoch) is None:
        return f"epoch {event.epoch} was never granted"
    if event.block >= books.index().num_blocks:
        return f"block {event.epoch}:{event.block} is not in the epoch"
    state = books.block(event.epoch, event.block).state
    if state != AVAILABLE:
        return f"block {event.epoch}:{event.block} is {state}"
    books.quarantine(event.epoch, event.block)
    return ""


def epoch_closed(books: Books, entry: Entry) -> str:
    """R15: an epoch is closed once every block of it is merged or quarantined."""
    event = cast(EpochClosed, entry.event)
    if books.scope is not None:
        return ""
    counts = books.epochs.get(event.epoch)
    if counts is None:
        return f"epoch {event.epoch} was never granted"
    if counts.closed_seq is not None:
        return f"epoch {event.epoch} is closed since {counts.closed_seq}"
    num_open = counts.blocks - counts.merged - counts.quarantined
    if num_open:
        return f"{num_open} blocks of epoch {event.epoch} are open"
    said = (event.blocks, event.tokens, event.num_quarantined)
    found = (counts.blocks, counts.merged_tokens, counts.quarantined)
    if said != found:
        return f"says {said}, it is {found}"
    counts.closed_seq = entry.record.sequence
    return ""


def _own(books: Books, row: BlockRow, lease: Token, state: str) -> str:
    """R3: '' where the writer's incarnation holds the block in `state` under this very lease."""
    name = f"block {row.epoch}:{row.block}"
    if row.state != state or row.incarnation != books.writer.seq:
        whose = "" if row.state not in UNDELIVERED else f" by incarnation {row.incarnation}"
        return f"{name} is {row.state}{whose}, not {state} by the writer"
    token = books.token_of(row)
    return "" if token == lease else f"lease {lease} of {name} is not {token}"


def _exhausted(books: Books, epoch: int) -> bool:
    counts = books.epochs.get(epoch)
    return counts is not None and counts.cursor >= counts.blocks and not counts.freed


def _in_part(skipped: list[str], num: int) -> str:
    if not skipped:
        return ""
    text = "; ".join(skipped[:5]) + (f"; and {len(skipped) - 5} more" if len(skipped) > 5 else "")
    return text if len(skipped) == num else IN_PART + text


RULES = {
    "lease.granted": granted,
    "lease.stolen": stolen,
    "lease.reclaimed": reclaimed,
    "block.started": started,
    "block.completed": completed,
    "block.quarantined": quarantined,
    "epoch.closed": epoch_closed,
}
