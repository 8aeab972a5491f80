"""Questions that policies, hubs, views and reports ask of the lease table: reads only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventlog.codec import unpack
from eventlog.config import RunConfig, Timing
from leases.answers import Answers
from leases.blocks import BlockIndex
from leases.progress import settings, target_reached
from leases.rows import Answer, Block, Delta, Incarnation, Join, Round, Run, Version

if TYPE_CHECKING:
    from leases.agenda import Agenda

_INCARNATION = (
    "SELECT i.seq, i.id, i.site, i.state, i.code, i.reason, i.drain, i.last_seq, "
    "run.term_ticks - CASE WHEN i.last_term = run.term THEN i.last_tick ELSE 0 END, i.version, "
    "i.mismatches, i.phase, i.step, i.tokens, i.tokens_per_s, i.walltime_left_s, i.loss, "
    "i.merged_blocks, i.merged_tokens, i.refusals, "
    "run.term_ticks - CASE WHEN i.progress_term = run.term THEN i.progress_tick ELSE 0 END, "
    "i.step_s, i.backoff_until, i.missing FROM incarnations i, run "
)
_DELTA = (
    "SELECT seq, id, incarnation, site, state, base_version, blob, codec, norm, num_blocks, "
    "tokens, last, weight, reason, ticks, num_bytes FROM deltas "
)
_VERSION = (
    "SELECT version, seq, round, update_blob, update_codec, parameters_digest, momentum_digest, "
    "residual_digest, tokens, merged_tokens, loss, ticks, snapshot_blob FROM versions "
)


@dataclass(slots=True)
class View:
    """Read access to a projection of the lease table, whose only connection is `db`."""

    db: sqlite3.Connection
    agenda: Agenda | None = field(default=None, init=False, compare=False)  # see leases.agenda.of
    _answers: Answers = field(init=False, compare=False)
    _known: tuple[RunConfig, BlockIndex, Timing] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._answers = Answers(self.db)

    def exists(self) -> bool:
        """Whether RunCreated is folded."""
        return bool(self._one("SELECT created_seq IS NOT NULL FROM run")[0])

    def run(self) -> Run:
        return self._answers.made("run", self._run)

    def _run(self) -> Run:
        row = self._one(
            "SELECT name, state, reason, read_only, term, holder, term_ticks, ticks, decision_seq, "
            "decision_id, round, version, merged_tokens, merged_blocks, outstanding_tokens, "
            "outstanding_blocks, live, parameters_blob, initial_digest, num_parameters FROM run"
        )
        return Run(*[*row[:8], (row[8], row[9]), *row[10:]])

    def config(self) -> RunConfig:
        return self._founded()[0]

    def index(self) -> BlockIndex:
        return self._founded()[1]

    def timing(self) -> Timing:
        return self._founded()[2]

    def _founded(self) -> tuple[RunConfig, BlockIndex, Timing]:
        """What a run was created with, which never changes. Only after RunCreated."""
        if self._known is None:
            config, index = settings(self.db)
            self._known = (config, index, Timing.of(config.lease_s))
        return self._known

    def target_reached(self) -> bool:
        """Whether the run has all that it was to get; see `leases.progress`."""
        config, index, _ = self._founded()
        return self._answers.made("reached", lambda: target_reached(self.db, (config, index)))

    def manifest_digest(self) -> str:
        return self.index().shape.manifest_digest

    def arithmetic(self) -> dict[str, str]:
        """Digest per canonical operation, as the run was created with."""
        value: dict[str, str] = unpack(self._one("SELECT arithmetic FROM run")[0])
        return value

    def pen(self, subject: str) -> tuple[int, str, int]:
        """Where a writer's pen stands (R6): counter and id of the subject's last numbered event,
        and the sequence of its last event of any kind."""
        rows = self.ask("SELECT n, last_id, last_seq FROM sources WHERE subject = ?", subject)
        return rows[0] if rows else (0, "", 0)

    def round_is_cut(self) -> bool:
        return bool(self.ask("SELECT 1 FROM rounds WHERE state = 'closed' LIMIT 1"))

    def live(self) -> list[Incarnation]:
        """Incarnations that have not departed, by site name."""
        return self._incarnations("WHERE i.state != 'departed' ORDER BY i.site")

    def live_at(self, site: str) -> Incarnation | None:
        found = self._incarnations("WHERE i.state != 'departed' AND i.site = ?", site)
        return found[0] if found else None

    def incarnation(self, seq: int) -> Incarnation | None:
        found = self._incarnations("WHERE i.seq = ?", seq)
        return found[0] if found else None

    def latest(self) -> list[Incarnation]:
        """The newest incarnation of every site, by site name."""
        return self._incarnations(
            "WHERE i.seq IN (SELECT max(seq) FROM incarnations GROUP BY site) ORDER BY i.site"
        )

    def num_departed(self) -> int:
        """Incarnations that have departed."""
        return int(self._one("SELECT count(*) FROM incarnations WHERE state = 'departed'")[0])

    def num_admitted_after(self, sequence: int) -> int:
        """Incarnations that were admitted after a position of the log."""
        return int(self._one("SELECT count(*) FROM incarnations WHERE seq > ?", sequence)[0])

    def backoff_until(self, site: str) -> int:
        """The tick of the run from which a site may join again (R14)."""
        sql = "SELECT coalesce(max(backoff_until), 0) FROM incarnations WHERE site = ?"
        return int(self._one(sql, site)[0])

    def backs_off(self) -> bool:
        """Whether some site may not join yet, and waits for ticks."""
        return bool(
            self.ask(
                "SELECT 1 FROM run, incarnations i "
                "WHERE i.backoff_until > 0 AND i.backoff_until > run.ticks LIMIT 1"
            )
        )

    def waiting_joins(self) -> list[Join]:
        rows = self.ask(
            "SELECT seq, id, site, predecessor_seq, predecessor_id, successor, manifest_digest, "
            "arithmetic, incarnation_seen FROM joins WHERE state = 'waiting' ORDER BY seq"
        )
        return [
            Join(
                (row[0], row[1]),
                row[2],
                None if row[3] is None else (row[3], row[4]),
                bool(row[5]),
                row[6],
                unpack(row[7]),
                row[8],
            )
            for row in rows
        ]

    def answer(self, join_seq: int) -> Answer | None:
        """What became of the join at this sequence; None where none is folded."""
        rows = self.ask(
            "SELECT j.state, i.seq, j.code, j.final, j.reason FROM joins j "
            "LEFT JOIN incarnations i ON i.join_seq = j.seq WHERE j.seq = ?",
            join_seq,
        )
        return Answer(*[*rows[0][:3], bool(rows[0][3]), rows[0][4]]) if rows else None

    def round(self) -> Round | None:
        """The round that is open or cut, if any."""
        return self._answers.made("round", self._round)

    def _round(self) -> Round | None:
        rows = self.ask(
            "SELECT round, state, base_version, quorum, grace_ticks, deadline_ticks, opened_ticks, "
            "cut_seq, cut_id, tokens, seq FROM rounds WHERE state = 'open' OR state = 'closed'"
        )
        if not rows:
            return None
        row = rows[0]
        cut = None if row[7] is None else (row[7], row[8])
        return Round(*[*row[:7], cut, *row[9:]])

    def quotas(self, round_: int) -> dict[int, int]:
        """Blocks of a round by incarnation (its sequence)."""
        return dict(self.ask("SELECT incarnation, quota FROM members WHERE round = ?", round_))

    def deltas(self, *states: str) -> list[Delta]:
        """Deltas in these states, in the canonical order of a merge."""
        these = " OR ".join(f"state = '{state}'" for state in states)  # as the index says it
        return self._deltas(
            f"WHERE {these} ORDER BY site, base_version, first_epoch, first_block, seq"
        )

    def quorum_ticks(self, num: int) -> int | None:
        """The tick of the run at which so many of the undecided deltas stood, if they do."""
        sql = "SELECT ticks FROM deltas WHERE state = 'undecided' ORDER BY seq LIMIT 1 OFFSET ?"
        return next((int(row[0]) for row in self.ask(sql, num - 1)), None)

    def has_open_delta(self) -> bool:
        """Whether any delta awaits its merge or refusal."""
        undecided = "state = 'undecided' OR state = 'cut' OR state = 'void'"
        return bool(self.ask(f"SELECT 1 FROM deltas WHERE {undecided} LIMIT 1"))

    def has_undecided(self, incarnation: int) -> bool:
        """Whether a delta of the incarnation awaits its merge or refusal."""
        undecided = "state = 'undecided' OR state = 'cut' OR state = 'void'"
        sql = f"SELECT 1 FROM deltas WHERE incarnation = ? AND ({undecided}) LIMIT 1"
        return bool(self.ask(sql, incarnation))

    def undecided_tokens(self, incarnation: int) -> int:
        """Tokens of an incarnation that are delivered and not yet merged."""
        row = self._one(
            "SELECT coalesce(sum(tokens), 0) FROM deltas WHERE incarnation = ? AND state != 'void' "
            "AND (state = 'undecided' OR state = 'cut' OR state = 'void')",
            incarnation,
        )
        return int(row[0])

    def spoiled_by(self, delta: Delta) -> int | None:
        """The earlier delta of the same incarnation that was refused for its values only after
        this one stood: both hold the same progress."""
        rows = self.ask(
            "SELECT seq FROM deltas WHERE incarnation = ?1 AND seq < ?2 "
            "AND spoiled_seq IS NOT NULL AND spoiled_seq > ?2 ORDER BY seq LIMIT 1",
            delta.incarnation,
            delta.token[0],
        )
        return int(rows[0][0]) if rows else None

    def delta(self, seq: int) -> Delta | None:
        found = self._deltas("WHERE seq = ?", seq)
        return found[0] if found else None

    def merged_in(self, round_: int) -> list[Delta]:
        """The deltas of a committed round in the order they were merged."""
        return self._deltas(
            "WHERE round = ? AND state = 'merged' "
            "ORDER BY site, base_version, first_epoch, first_block, seq",
            round_,
        )

    def held(self, incarnation: int) -> list[Block]:
        """Undelivered blocks an incarnation holds, in the order they were granted."""
        rows = self.ask(
            "SELECT b.epoch, b.block, b.state, l.seq, l.id FROM blocks b "
            "JOIN leases l ON l.seq = b.lease WHERE b.incarnation = ? "
            "ORDER BY l.seq, b.epoch, b.block",
            incarnation,
        )
        return [Block(row[0], row[1], row[2], (row[3], row[4])) for row in rows]

    def num_held(self) -> int:
        """Blocks held undelivered by anybody."""
        sql = "SELECT count(*) FROM blocks WHERE state IN ('leased', 'training', 'trained')"
        return int(self._one(sql)[0])

    def version(self, version: int) -> Version | None:
        rows = self.ask(_VERSION + "WHERE version = ?", version)
        return Version(*rows[0]) if rows else None

    def versions(self, after: int = 0) -> list[Version]:
        return [Version(*row) for row in self.ask(_VERSION + "WHERE version > ?", after)]

    def snapshot_at_most(self, version: int) -> Version | None:
        """The newest version up to this one that has a snapshot."""
        rows = self.ask(
            _VERSION + "WHERE snapshot_blob IS NOT NULL AND version <= ? "
            "AND snapshot_blob NOT IN (SELECT blob FROM released) ORDER BY version DESC LIMIT 1",
            version,
        )
        return Version(*rows[0]) if rows else None

    def epochs(self) -> list[dict[str, Any]]:
        columns = (
            "epoch, blocks, cursor, freed, granted, outstanding, merged, quarantined, reclaimed, "
            "stolen, refused, merged_tokens, closed_seq"
        )
        rows = self.ask(f"SELECT {columns} FROM epochs ORDER BY epoch")
        return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]

    def _incarnations(self, where: str, *arguments: object) -> list[Incarnation]:
        rows = self.ask(_INCARNATION + where, *arguments)
        return [Incarnation(*[(r[0], r[1]), *r[2:6], bool(r[6]), *r[7:]]) for r in rows]

    def _deltas(self, where: str, *arguments: object) -> list[Delta]:
        rows = self.ask(_DELTA + where, *arguments)
        return [Delta(*[(r[0], r[1]), *r[2:11], bool(r[11]), *r[12:]]) for r in rows]

    def stay(self) -> None:
        """What was written just now, through this view's connection, changes no answer."""
        self._answers.stay()

    def ask(self, sql: str, *arguments: object) -> list[Any]:
        """All rows of a query; not to be changed."""
        return self._answers.rows(sql, arguments)

    def _one(self, sql: str, *arguments: object) -> Any:
        return next(iter(self._answers.rows(sql, arguments)), None)
