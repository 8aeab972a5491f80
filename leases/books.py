"""The lease table's primitive writes: every move of a block keeps rows and counts together.

Callers test first (R1): a move that is not in `states.MOVES` is an error of this program, and
raises, which rolls the transaction back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from eventlog.events import MAX_COUNT, Token
from leases import pages
from leases.blocks import BlockIndex
from leases.pages import BlockRow, EpochRow, LeaseRow, LifeRow, Pages, RunRow, SourceRow
from leases.progress import settings
from leases.states import AVAILABLE, MOVES, OUTSTANDING


@dataclass(slots=True)
class Books:
    """The projection, open for one transaction, and whose eyes it is folded with.

    scope: None folds the whole log and judges everything; a site's name folds what its hub reads
    and takes decisions about others as judged (R16).
    run, sources, lives, epochs, leases, blocks: rows that many events touch. They are read and
    changed here only, and `finish` writes them. All other tables stand in `db` as they are.
    writer: the incarnation whose event is judged, once it is known to live; to change.
    """

    db: sqlite3.Connection
    scope: str | None = None
    run: RunRow = field(init=False)
    sources: Pages[str, SourceRow] = field(init=False)
    lives: Pages[int, LifeRow] = field(init=False)
    epochs: Pages[int, EpochRow] = field(init=False)
    leases: Pages[int, LeaseRow] = field(init=False)
    blocks: Pages[tuple[int, int], BlockRow] = field(init=False)
    writer: LifeRow = field(init=False)
    _index: BlockIndex | None = None

    def __post_init__(self) -> None:
        self.run = pages.read_run(self.db)
        self.sources = Pages(self.db, pages.SOURCES)
        self.lives = Pages(self.db, pages.LIVES)
        self.epochs = Pages(self.db, pages.EPOCHS)
        self.leases = Pages(self.db, pages.LEASES)
        self.blocks = Pages(self.db, pages.BLOCKS)

    def finish(self) -> None:
        """Write everything that has changed: `db` is what it would be had every event written."""
        pages.write_run(self.db, self.run)
        for rows in (self.sources, self.lives, self.epochs, self.leases, self.blocks):
            rows.flush()

    def index(self) -> BlockIndex:
        """The run's blocks. Only after RunCreated."""
        if self._index is None:
            self._index = settings(self.db)[1]
        return self._index

    def value(self, sql: str, *arguments: object) -> object:
        """The first column of the first row, or None."""
        row = self.db.execute(sql, arguments).fetchone()
        return None if row is None else row[0]

    def source(self, subject: str) -> SourceRow:
        """Where a writer's pen stands, to be moved."""
        return self.sources.get(subject) or self.sources.add(SourceRow(subject))

    def live(self, token: Token | None) -> LifeRow | None:
        """An incarnation that has not departed."""
        if token is None:
            return None
        life = self.lives.get(token[0])
        if life is None or life.id != token[1] or life.state == "departed":
            return None
        return life

    def living_at(self, site: str) -> LifeRow | None:
        """The incarnation of a site that has not departed."""
        return next(iter(self.lives.find("site = ? AND state != 'departed'", site)), None)

    def progressed(self, life: LifeRow) -> None:
        """R10: its trainer has done something since."""
        life.progress_term, life.progress_tick = self.run.term, self.run.term_ticks

    def keep(self, blob: str) -> None:
        """R20: content that is stored anew after its release is needed again."""
        self.db.execute("DELETE FROM released WHERE blob = ?", (blob,))

    def not_of(self, site: str, token: Token) -> str:
        """'' where the incarnation lives and is one of this site; otherwise why not."""
        live = self.live(token)
        if live is None:
            return f"incarnation {token} does not live"
        return (
            "" if live.site == site else f"incarnation {token} is one of {live.site}, not of {site}"
        )

    def block(self, epoch: int, block: int) -> BlockRow:
        """A block; an untouched one is available, and not to be changed."""
        return self.blocks.get((epoch, block)) or BlockRow(epoch, block, AVAILABLE)

    def held(self, incarnation: int) -> list[BlockRow]:
        """What an incarnation holds undelivered, in order."""
        return self.blocks.find("incarnation = ?", incarnation)

    def held_by_delta(self, delta: int) -> list[BlockRow]:
        """The blocks that were delivered with a delta, in order."""
        return self.blocks.find("delta = ?", delta)

    def token_of(self, row: BlockRow) -> Token | None:
        """R3: the lease that a block was granted under."""
        lease = None if row.lease is None else self.leases.get(row.lease)
        return None if lease is None else (lease.seq, lease.id)

    def ensure_epoch(self, epoch: int) -> EpochRow:
        """The epoch's counts, to change."""
        found = self.epochs.get(epoch)
        return found or self.epochs.add(EpochRow(epoch, self.index().num_blocks))

    # -- moves of blocks --------------------------------------------------------------------------

    def grant(self, epoch: int, block: int, lease: int, incarnation: int) -> None:
        """available -> leased."""
        row, counts = self._moved(epoch, block, "grant")
        row.lease, row.incarnation, row.grants = lease, incarnation, row.grants + 1
        counts.granted += 1
        self._outstanding(counts, block, +1)

    def move(self, row: BlockRow, move: str) -> None:
        """A move that keeps the holder: start, complete."""
        row.state = _after(row, move)

    def deliver(self, row: BlockRow, delta: int) -> None:
        """trained -> delivered: the block moves from the incarnation to the delta (R4)."""
        row.state = _after(row, "deliver")
        row.incarnation, row.delta = None, delta

    def merge(self, row: BlockRow) -> int:
        """delivered -> merged, once and for good; its tokens."""
        row, counts = self._moved(row.epoch, row.block, "merge")
        tokens = self.index().tokens(row.block)
        counts.merged += 1
        counts.merged_tokens += tokens
        self._outstanding(counts, row.block, -1)
        return tokens

    def free(self, held: Iterable[BlockRow], move: str) -> None:
        """steal, reclaim or refuse: the blocks go back to available."""
        for one in held:
            row, counts = self._moved(one.epoch, one.block, move)
            row.lease = row.incarnation = row.delta = None
            counts.freed += 1
            counts.stolen += move == "steal"
            counts.reclaimed += move == "reclaim"
            counts.refused += move == "refuse"
            self._outstanding(counts, row.block, -1)

    def quarantine(self, epoch: int, block: int) -> None:
        """available -> quarantined."""
        _, counts = self._moved(epoch, block, "quarantine")
        counts.quarantined += 1

    def _moved(self, epoch: int, block: int, move: str) -> tuple[BlockRow, EpochRow]:
        """The block behind its move, and its epoch's counts. The first move makes its row, and
        may leave the epoch's cursor behind; a later one from available takes a freed block."""
        row, counts = self.blocks.get((epoch, block)), self.ensure_epoch(epoch)
        if row is None:
            row = self.blocks.add(BlockRow(epoch, block, AVAILABLE))
            self._advance(counts)
        else:
            counts.freed -= row.state == AVAILABLE
        row.state = _after(row, move)
        return row, counts

    def _outstanding(self, counts: EpochRow, block: int, by: int) -> None:
        """A block more or less on its way to a merge."""
        counts.outstanding += by
        self.run.outstanding_blocks += by
        self.run.outstanding_tokens += by * self.index().tokens(block)

    def _advance(self, counts: EpochRow) -> None:
        """Move the epoch's cursor to its first position whose block was never touched. A hub does
        not see what others are granted."""
        index, epoch = self.index(), counts.epoch
        while self.scope is None and counts.cursor < index.num_blocks:
            if self.blocks.get((epoch, index.at(epoch, counts.cursor))) is None:
                return
            counts.cursor += 1


def _after(row: BlockRow, move: str) -> str:
    if (row.state, move) not in MOVES:
        raise AssertionError(f"untested move {move} of {row.epoch}:{row.block} in {row.state}")
    return MOVES[row.state, move]


def finite(value: float) -> float:
    """SQLite keeps no NaN; a number that is none is as good as infinite."""
    return value if value == value else float("inf")


def capped(total: int) -> int:
    """A sum of what others say, as large as a column holds."""
    return min(total, MAX_COUNT)


def num_outstanding(books: Books) -> int:
    """Blocks on their way to a merge, counted from the rows (a check of the counts)."""
    marks = ", ".join("?" * len(OUTSTANDING))
    value = books.value(f"SELECT count(*) FROM blocks WHERE state IN ({marks})", *OUTSTANDING)
    assert isinstance(value, int)
    return value
