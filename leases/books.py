"""The lease table's primitive writes: every move of a block keeps rows and counts together.

Callers test first (R1): a move that is not in `states.MOVES` is an error of this program, and
raises, which rolls the transaction back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from eventlog.events import Token
from leases.blocks import BlockIndex
from leases.progress import settings
from leases.states import AVAILABLE, MOVES, OUTSTANDING

Held = tuple[int, int]  # (epoch, block)


@dataclass(slots=True)
class Books:
    """The open projection, and whose eyes it is folded with.

    scope: None folds the whole log and judges everything; a site's name folds what its hub reads
    and takes decisions about others as judged (R16).
    """

    db: sqlite3.Connection
    scope: str | None = None
    _index: tuple[int, BlockIndex] | None = field(default=None)

    def index(self) -> BlockIndex:
        """The run's blocks. Only after RunCreated."""
        ((created,),) = self.db.execute("SELECT created_seq FROM run").fetchall()
        if self._index is None or self._index[0] != created:
            self._index = (created, settings(self.db)[1])
        return self._index[1]

    def value(self, sql: str, *arguments: object) -> object:
        """The first column of the first row, or None."""
        row = self.db.execute(sql, arguments).fetchone()
        return None if row is None else row[0]

    def run(self, column: str) -> object:
        """One column of the run's row."""
        return self.value(f"SELECT {column} FROM run")

    def live(self, token: Token | None) -> tuple[str, str] | None:
        """(site, state) of an incarnation that has not departed."""
        if token is None:
            return None
        row: tuple[str, str] | None = self.db.execute(
            "SELECT site, state FROM incarnations WHERE seq = ? AND id = ? AND state != 'departed'",
            token,
        ).fetchone()
        return row

    def progressed(self, incarnation: int) -> None:
        """R10: its trainer has done something since."""
        self.db.execute(
            "UPDATE incarnations SET progress_term = run.term, progress_tick = run.term_ticks "
            "FROM run WHERE incarnations.seq = ?",
            (incarnation,),
        )

    def keep(self, blob: str) -> None:
        """R20: content that is stored anew after its release is needed again."""
        self.db.execute("DELETE FROM released WHERE blob = ?", (blob,))

    def not_of(self, site: str, token: Token) -> str:
        """'' where the incarnation lives and is one of this site; otherwise why not."""
        live = self.live(token)
        if live is None:
            return f"incarnation {token} does not live"
        return "" if live[0] == site else f"incarnation {token} is one of {live[0]}, not of {site}"

    def block(self, epoch: int, block: int) -> tuple[str, int | None, int | None, int | None]:
        """(state, lease, incarnation, delta) of a block; untouched ones are available."""
        row = self.db.execute(
            "SELECT state, lease, incarnation, delta FROM blocks WHERE epoch = ? AND block = ?",
            (epoch, block),
        ).fetchone()
        return row or (AVAILABLE, None, None, None)

    def ensure_epoch(self, epoch: int) -> None:
        self.db.execute(
            "INSERT OR IGNORE INTO epochs (epoch, blocks) VALUES (?, ?)",
            (epoch, self.index().num_blocks),
        )

    def grant(self, epoch: int, block: int, lease: int, incarnation: int) -> None:
        """available -> leased."""
        known = self.db.execute(
            "UPDATE blocks SET state = ?, lease = ?, incarnation = ?, grants = grants + 1 "
            "WHERE epoch = ? AND block = ? AND state = 'available'",
            (MOVES[AVAILABLE, "grant"], lease, incarnation, epoch, block),
        ).rowcount
        if not known:
            self.db.execute(
                "INSERT INTO blocks (epoch, block, state, lease, incarnation, grants) "
                "VALUES (?, ?, ?, ?, ?, 1)",
                (epoch, block, MOVES[AVAILABLE, "grant"], lease, incarnation),
            )
        self._count(epoch, block, +1, granted=1, freed=-known)
        if not known and not self.scope:
            self._advance(epoch)

    def move(self, epoch: int, block: int, move: str) -> None:
        """A move that keeps the holder: start, complete."""
        self.db.execute(
            "UPDATE blocks SET state = ? WHERE epoch = ? AND block = ?",
            (self._after(epoch, block, move), epoch, block),
        )

    def deliver(self, epoch: int, block: int, delta: int) -> None:
        """trained -> delivered: the block moves from the incarnation to the delta (R4)."""
        self.db.execute(
            "UPDATE blocks SET state = ?, incarnation = NULL, delta = ? "
            "WHERE epoch = ? AND block = ?",
            (self._after(epoch, block, "deliver"), delta, epoch, block),
        )

    def merge(self, epoch: int, block: int) -> int:
        """delivered -> merged, once and for good; its tokens."""
        tokens = self.index().tokens(block)
        self.db.execute(
            "UPDATE blocks SET state = ? WHERE epoch = ? AND block = ?",
            (self._after(epoch, block, "merge"), epoch, block),
        )
        self._count(epoch, block, -1, merged=1, merged_tokens=tokens)
        return tokens

    def free(self, held: Iterable[Held], move: str, counter: str) -> int:
        """steal, reclaim or refuse: the blocks go back to available; how many."""
        num = 0
        for epoch, block in held:
            self.db.execute(
                "UPDATE blocks SET state = ?, lease = NULL, incarnation = NULL, delta = NULL "
                "WHERE epoch = ? AND block = ?",
                (self._after(epoch, block, move), epoch, block),
            )
            self._count(epoch, block, -1, freed=1, **{counter: 1})
            num += 1
        return num

    def quarantine(self, epoch: int, block: int) -> None:
        """available -> quarantined."""
        self.ensure_epoch(epoch)
        known = self.db.execute(
            "UPDATE blocks SET state = ? WHERE epoch = ? AND block = ? AND state = 'available'",
            (MOVES[AVAILABLE, "quarantine"], epoch, block),
        ).rowcount
        if not known:
            self.db.execute(
                "INSERT INTO blocks (epoch, block, state) VALUES (?, ?, 'quarantined')",
                (epoch, block),
            )
        self._count(epoch, block, 0, quarantined=1, freed=-known)
        self._advance(epoch)

    def held(self, incarnation: int) -> list[tuple[int, int, str]]:
        """(epoch, block, state) of what an incarnation holds undelivered, in order."""
        return self.db.execute(
            "SELECT epoch, block, state FROM blocks WHERE incarnation = ? ORDER BY epoch, block",
            (incarnation,),
        ).fetchall()

    def _after(self, epoch: int, block: int, move: str) -> str:
        state = self.block(epoch, block)[0]
        if (state, move) not in MOVES:
            raise AssertionError(f"untested move {move} of block {epoch}:{block} in {state}")
        return MOVES[state, move]

    def _count(self, epoch: int, block: int, outstanding: int, **deltas: int) -> None:
        columns = {"outstanding": outstanding, **{k: v for k, v in deltas.items() if v}}
        updates = ", ".join(f"{column} = {column} + {by}" for column, by in columns.items())
        self.db.execute(f"UPDATE epochs SET {updates} WHERE epoch = ?", (epoch,))
        if outstanding:
            tokens = outstanding * self.index().tokens(block)
            self.db.execute(
                "UPDATE run SET outstanding_blocks = outstanding_blocks + ?, "
                "outstanding_tokens = outstanding_tokens + ?",
                (outstanding, tokens),
            )

    def _advance(self, epoch: int) -> None:
        """Move the epoch's cursor to its first position whose block was never touched."""
        cursor = self.value("SELECT cursor FROM epochs WHERE epoch = ?", epoch)
        assert isinstance(cursor, int)
        index, start = self.index(), cursor
        while (
            cursor < index.num_blocks
            and self.db.execute(
                "SELECT 1 FROM blocks WHERE epoch = ? AND block = ?",
                (epoch, index.at(epoch, cursor)),
            ).fetchone()
        ):
            cursor += 1
        if cursor != start:
            self.db.execute("UPDATE epochs SET cursor = ? WHERE epoch = ?", (cursor, epoch))


def finite(value: float) -> float:
    """SQLite keeps no NaN; a number that is none is as good as infinite."""
    return value if value == value else float("inf")


def num_outstanding(books: Books) -> int:
    """Blocks on their way to a merge, counted from the rows (a check of the counts)."""
    marks = ", ".join("?" * len(OUTSTANDING))
    value = books.value(f"SELECT count(*) FROM blocks WHERE state IN ({marks})", *OUTSTANDING)
    assert isinstance(value, int)
    return value
