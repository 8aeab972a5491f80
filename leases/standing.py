"""What the agenda knows of one incarnation, read from the lease table in a few questions."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

from eventlog.events import Token
from leases.rows import Round
from leases.states import LEASED, TRAINED, TRAINING

UNFIT_MISMATCHES = 2  # version mismatches in a row
RETENTION = 0  # noted in place of an incarnation: what can be released may have changed
_OPEN = "(d.state = 'undecided' OR d.state = 'cut' OR d.state = 'void')"
_NOTES = (  # what is written, what is noted of it, and under which condition
    ("incarnations INSERT", "new.seq", ""),
    ("incarnations UPDATE", "new.seq", ""),
    ("blocks INSERT", "new.incarnation", "new.incarnation IS NOT NULL AND "),
    ("blocks UPDATE OF state, incarnation", "old.incarnation", "old.incarnation IS NOT NULL AND "),
    ("blocks UPDATE OF state, incarnation", "new.incarnation", "new.incarnation IS NOT NULL AND "),
    ("deltas INSERT", "new.incarnation", ""),
    ("deltas UPDATE OF state", "new.incarnation", ""),
    ("deltas UPDATE OF state", f"{RETENTION}", "new.state = 'refused' AND "),
    ("members INSERT", "new.incarnation", ""),
    ("members UPDATE", "new.incarnation", ""),
    ("joins INSERT", "-new.seq", ""),
    ("joins UPDATE", "-new.seq", ""),
    ("versions UPDATE OF snapshot_blob", f"{RETENTION}", ""),
    (
        "incarnations UPDATE OF version, state",
        f"{RETENTION}",
        "old.version IS NULL AND (new.version IS NOT NULL OR new.state != 'live') AND ",
    ),
    ("released INSERT", f"{RETENTION}", ""),
    ("released DELETE", f"{RETENTION}", ""),
)


@dataclass(frozen=True, slots=True)
class OpenDelta:
    """A delta that is not decided; `spoiled`: an earlier one of the same progress was refused."""

    seq: int
    state: str
    base_version: int
    num_blocks: int
    spoiled: bool


class Standing(NamedTuple):
    """An incarnation in the open round. Ticks are of the current term."""

    seq: int
    id: str
    site: str
    state: str
    drain: int
    last_tick: int
    progress_tick: int
    version: int | None
    mismatches: int
    refusals: int
    tokens_per_s: float
    leased: int
    training: int
    trained: int
    deltas: tuple[OpenDelta, ...]
    quota: int | None  # None: no member of the round
    stolen: int
    num_granted: int  # held, or in an undecided delta of the round

    @property
    def token(self) -> Token:
        """(sequence, event id) of its SiteAdmitted."""
        return (self.seq, self.id)

    @property
    def is_live(self) -> bool:
        return self.state != "departed"

    @property
    def num_held(self) -> int:
        return self.leased + self.training + self.trained

    @property
    def num_undecided(self) -> int:
        return sum(delta.state == "undecided" for delta in self.deltas)

    @property
    def has_delivered(self) -> bool:
        """Whether a delta of it waits to be merged."""
        return any(delta.state != "void" for delta in self.deltas)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to train and is not about to deliver, and was not robbed."""
        has_nothing = not self.leased and not self.training and not self.stolen
        return has_nothing and (not self.trained or bool(self.deltas))


def usable(held: int | None, newest: int, max_staleness: int) -> bool:
    """Whether who proved to hold this version may still base a delta on it (R10, R13)."""
    return held is not None and newest - held <= max_staleness


def note_changes(db: sqlite3.Connection) -> None:
    """Have the connection note from here on which incarnations' rows are written. Outside of a
    transaction."""
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("CREATE TEMP TABLE IF NOT EXISTS touched (incarnation INTEGER PRIMARY KEY)")
    for number, (what, noted, condition) in enumerate(_NOTES):
        table, _, action = what.partition(" ")
        db.execute(  # asked for first: an upsert would undo an OR IGNORE
            f"CREATE TEMP TRIGGER IF NOT EXISTS touched_{number} AFTER {action} ON main.{table} "
            f"WHEN {condition}NOT EXISTS (SELECT 1 FROM touched WHERE incarnation = {noted}) "
            f"BEGIN INSERT INTO touched VALUES ({noted}); END"
        )


def touched(db: sqlite3.Connection, mark: int) -> tuple[set[int], bool]:
    """What is noted since `forget`, a join by its negative sequence; and whether it was the agenda
    of this mark that forgot."""
    noted = {row[0] for row in db.execute("SELECT incarnation FROM temp.touched")}
    ours = mark in noted
    noted.discard(mark)
    return noted, ours


def forget(db: sqlite3.Connection, mark: int) -> None:
    """Note anew from here on, for the agenda of this mark, whose notes these were."""
    db.execute("DELETE FROM temp.touched WHERE incarnation != ?", (mark,))


def touch_all(db: sqlite3.Connection, round_: Round | None, mark: int) -> set[int]:
    """Note every incarnation that a decision may concern, for the agenda of this mark."""
    db.execute("DELETE FROM temp.touched")
    db.execute(
        "INSERT OR IGNORE INTO temp.touched SELECT seq FROM incarnations WHERE state != 'departed' "
        f"UNION SELECT d.incarnation FROM deltas d WHERE {_OPEN} "
        "UNION SELECT incarnation FROM members WHERE round = ? "
        "UNION SELECT -seq FROM joins WHERE state = 'waiting'",
        (round_.round if round_ else -1,),
    )
    noted = {row[0] for row in db.execute("SELECT incarnation FROM temp.touched")}
    db.execute("INSERT INTO temp.touched VALUES (?)", (mark,))
    return noted


def load(
    db: sqlite3.Connection, round_: Round | None
) -> tuple[dict[int, Standing], dict[int, int]]:
    """The noted incarnations that are live or have an open delta; quotas of noted members."""
    rows = db.execute(_LOAD, (round_.round if round_ else -1,)).fetchall()
    deltas = _deltas(db) if any(row[-1] for row in rows) else {}
    found, quotas = {}, {}
    for row in rows:
        seq, quota = row[0], row[-3]
        if quota is not None:
            quotas[seq] = quota
        open_deltas = tuple(deltas.get(seq, ()))
        if row[3] == "departed" and not open_deltas:
            continue
        in_round = sum(
            delta.num_blocks
            for delta in open_deltas
            if round_ and delta.seq > round_.seq and delta.state != "void"
        )
        leased, training, trained, _, stolen, _ = row[-6:]
        granted = leased + training + trained + in_round
        rest = (leased, training, trained, open_deltas, quota, stolen or 0, granted)
        found[seq] = Standing(*[*row[:-6], *rest])
    return found, quotas


_HELD = "(SELECT count(*) FROM blocks b WHERE b.incarnation = i.seq AND b.state = '{}')"
_LOAD = (
    "SELECT i.seq, i.id, i.site, i.state, i.drain, "
    "CASE WHEN i.last_term = run.term THEN i.last_tick ELSE 0 END, "
    "CASE WHEN i.progress_term = run.term THEN i.progress_tick ELSE 0 END, "
    "i.version, i.mismatches, i.refusals, i.tokens_per_s, "
    f"{_HELD.format(LEASED)}, {_HELD.format(TRAINING)}, {_HELD.format(TRAINED)}, "
    "m.quota, m.stolen, "
    f"EXISTS (SELECT 1 FROM deltas d WHERE d.incarnation = i.seq AND {_OPEN}) "
    "FROM temp.touched t CROSS JOIN incarnations i ON i.seq = t.incarnation CROSS JOIN run "
    "LEFT JOIN members m ON m.round = ? AND m.incarnation = i.seq"
)


def _deltas(db: sqlite3.Connection) -> dict[int, list[OpenDelta]]:
    found: dict[int, list[OpenDelta]] = {}
    for seq, delta, state, base, num, spoiled in db.execute(
        "SELECT d.incarnation, d.seq, d.state, d.base_version, d.num_blocks, "
        "EXISTS (SELECT 1 FROM deltas s WHERE s.incarnation = d.incarnation AND s.seq < d.seq "
        "AND s.spoiled_seq IS NOT NULL AND s.spoiled_seq > d.seq) "
        "FROM temp.touched t CROSS JOIN deltas d ON d.incarnation = t.incarnation "
        f"WHERE {_OPEN} ORDER BY d.seq"
    ):
        found.setdefault(seq, []).append(OpenDelta(delta, state, base, num, bool(spoiled)))
    return found
