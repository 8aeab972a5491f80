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
from leases.books import Books
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
    if books.run("state") != "running":
        return f"the run is {books.run('state')}"
    if books.scope is None and event.epoch and not _exhausted(books, event.epoch - 1):
        return f"epoch {event.epoch - 1} still has blocks available"
    seq, num_blocks = event.incarnation[0], books.index().num_blocks
    skipped: list[str] = []
    given: set[int] = set()
    for block in event.blocks:
        state = books.block(event.epoch, block)[0] if block < num_blocks else "not in the epoch"
        if state == AVAILABLE and block not in given:
            given.add(block)
        else:
            skipped.append(f"{event.epoch}:{block} is {state}")
    if not given:
        return _in_part(skipped, len(event.blocks))
    books.ensure_epoch(event.epoch)
    books.db.execute(
        "INSERT INTO leases VALUES (?, ?, ?)", (entry.record.sequence, entry.envelope.id, seq)
    )
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
    skipped, taken = [], []
    for block in event.blocks:
        state, _, holder, _ = books.block(event.epoch, block)
        if state == LEASED and holder == event.incarnation[0] and block not in taken:
            taken.append(block)
        else:
            skipped.append(f"{event.epoch}:{block} is {state}, not an unstarted one of it")
    books.free([(event.epoch, block) for block in taken], "steal", "stolen")
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
    states = {(e, block): state for e, block, state in books.held(event.incarnation[0])}
    named = sorted(set(event.blocks))
    whole = states.keys() <= set(named)
    taken = [key for key in named if key in states and (whole or states[key] == LEASED)]
    skipped = [
        f"{e}:{block} is {states.get((e, block), 'not held by it')}, and not all are taken"
        for e, block in named
        if (e, block) not in taken
    ]
    books.free(taken, "reclaim", "reclaimed")
    return _in_part(skipped, len(named))


def started(books: Books, entry: Entry) -> str:
    event = cast(BlockStarted, entry.event)
    void = _own(books, entry, event.epoch, event.block, event.lease, LEASED)
    if not void:
        books.move(event.epoch, event.block, "start")
        assert entry.envelope is not None and entry.envelope.incarnation is not None
        books.progressed(entry.envelope.incarnation[0])
    return void


def completed(books: Books, entry: Entry) -> str:
    event = cast(BlockCompleted, entry.event)
    void = _own(books, entry, event.epoch, event.block, event.lease, TRAINING)
    if void:
        return void
    books.move(event.epoch, event.block, "complete")
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    tokens = books.index().tokens(event.block)
    rate = tokens / max(event.seconds, MIN_BLOCK_S) if event.seconds else None
    books.db.execute(
        "UPDATE incarnations SET loss = ?, tokens = tokens + ?, phase = 'training', "
        "tokens_per_s = coalesce(?, tokens_per_s) WHERE seq = ?",
        (
            event.loss if event.loss == event.loss else None,
            tokens,
            rate,
            entry.envelope.incarnation[0],
        ),
    )
    books.progressed(entry.envelope.incarnation[0])
    return ""


def quarantined(books: Books, entry: Entry) -> str:
    event = cast(BlockQuarantined, entry.event)
    if books.scope is not None:
        return ""
    if books.value("SELECT 1 FROM epochs WHERE epoch = ?", event.epoch) is None:
        return f"epoch {event.epoch} was never granted"
    if event.block >= books.index().num_blocks:
        return f"block {event.epoch}:{event.block} is not in the epoch"
    state = books.block(event.epoch, event.block)[0]
    if state != AVAILABLE:
        return f"block {event.epoch}:{event.block} is {state}"
    books.quarantine(event.epoch, event.block)
    return ""


def epoch_closed(books: Books, entry: Entry) -> str:
    """R15: an epoch is closed once every block of it is merged or quarantined."""
    event = cast(EpochClosed, entry.event)
    if books.scope is not None:
        return ""
    row = books.db.execute(
        "SELECT blocks, merged, quarantined, merged_tokens, closed_seq FROM epochs WHERE epoch = ?",
        (event.epoch,),
    ).fetchone()
    if row is None:
        return f"epoch {event.epoch} was never granted"
    blocks, merged, num_quarantined, tokens, closed = row
    if closed is not None:
        return f"epoch {event.epoch} is closed since {closed}"
    if merged + num_quarantined != blocks:
        return f"{blocks - merged - num_quarantined} blocks of epoch {event.epoch} are open"
    said = (event.blocks, event.tokens, event.num_quarantined)
    if said != (blocks, tokens, num_quarantined):
        return f"says {said}, it is {(blocks, tokens, num_quarantined)}"
    books.db.execute(
        "UPDATE epochs SET closed_seq = ? WHERE epoch = ?", (entry.record.sequence, event.epoch)
    )
    return ""


def _own(books: Books, entry: Entry, epoch: int, block: int, lease: Token, state: str) -> str:
    """R3: '' where the writer's incarnation holds the block in `state` under this very lease."""
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    now, held_lease, holder, _ = books.block(epoch, block)
    if now != state or holder != entry.envelope.incarnation[0]:
        whose = "" if now not in UNDELIVERED else f" by incarnation {holder}"
        return f"block {epoch}:{block} is {now}{whose}, not {state} by the writer"
    row = books.db.execute("SELECT seq, id FROM leases WHERE seq = ?", (held_lease,)).fetchone()
    return "" if row == lease else f"lease {lease} of block {epoch}:{block} is not {row}"


def _exhausted(books: Books, epoch: int) -> bool:
    row = books.db.execute(
        "SELECT blocks, cursor, freed FROM epochs WHERE epoch = ?", (epoch,)
    ).fetchone()
    return row is not None and row[1] >= row[0] and not row[2]


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
