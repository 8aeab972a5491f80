"""Who may have something due: an index of the lease table, kept in memory by what has changed.

The coordinator decides after every event, and most events concern one site. So that such a
decision does not look at all sites, the agenda keeps, for each rule, the incarnations that it may
have something to say about. Rules judge those by the table itself; the agenda only says whom to
ask. All of it follows from the table: made anew, it is the same (tests/leases/test_agenda.py), so
a recovered coordinator decides as one that ran all along.

What changed is noted by SQLite: triggers of this connection name the incarnations whose rows are
written, by whatever code, and a rollback takes the note back with the rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventlog.config import RunConfig
from leases import standing
from leases.ranks import Ranks, Timers
from leases.rows import Join, Round, Run
from leases.standing import Standing

if TYPE_CHECKING:
    from leases.slowest import Slowest
    from leases.view import View

NEVER_OVERDUE_TICKS = 16  # 2 * Timing.BASE_K: without progress for so long nothing is overdue yet
_MARKS = itertools.count(-(1 << 62))  # below any sequence's negative


@dataclass(slots=True)
class Agenda:
    """Made by `of`, for one view; up to date when `of` has returned it."""

    view: View
    standings: dict[int, Standing] = field(default_factory=dict)  # live, or with an open delta
    leaving: set[int] = field(default_factory=set)  # asked to go, or unfit
    ready: set[int] = field(default_factory=set)  # may be members of the next round
    wanting: Ranks = field(default_factory=Ranks)  # members with less than their quota, by site
    num_wanted: int = 0  # blocks that they lack
    seeking: set[int] = field(default_factory=set)  # of those, the ones that owe the round a delta
    late: set[int] = field(default_factory=set)  # could train, and are no members
    holding: set[int] = field(default_factory=set)  # members that owe a delta and hold blocks
    idle: set[int] = field(default_factory=set)  # may take stolen blocks
    holders: set[int] = field(default_factory=set)  # hold unstarted blocks
    suspect: set[int] = field(default_factory=set)  # an open delta of theirs may be refused
    joins: dict[str, Join] = field(default_factory=dict)  # that wait, by site
    doors: set[str] = field(default_factory=set)  # sites whose join may be answered now
    num_held: int = 0  # undelivered blocks, of anybody
    num_left: int = 0  # of those, the members' that are not trained
    num_quota: int = 0  # of all members, departed ones too
    unjudged: set[int] = field(default_factory=set)  # undecided deltas not known to be judged
    num_undecided: int = 0
    changed: set[int] = field(default_factory=set)  # incarnations, since stealing looked last
    num_changes: int = 0  # grows when everything is looked at anew
    slowest: Slowest | None = None  # see leases.slowest
    silence: Timers = field(default_factory=Timers)  # by the tick of the last event
    progress: Timers = field(default_factory=Timers)  # by the tick at which to look again
    retention_is_new: bool = True  # blobs may be releasable that were not when last looked at
    _fastest: float | None = None  # None: to be looked for
    _ahead: int = 0  # blocks that a site may hold for the next round
    _frame: tuple[object, ...] = ()
    _quotas: dict[int, int] = field(default_factory=dict)
    _mark: int = field(default_factory=lambda: next(_MARKS))
    _written: int = -1

    def refresh(self) -> None:
        """Take in what was written since the last time."""
        db = self.view.db
        if self._written == db.total_changes:
            return
        if self._written < 0:
            standing.note_changes(db)
        touched, ours = standing.touched(db, self._mark)
        run, round_ = self.view.run(), self.view.round()
        frame = _frame(run, round_)
        if not ours or standing.RETENTION in touched:
            self.retention_is_new = True
        if not ours or frame != self._frame:
            self._clear(frame)
            touched = standing.touch_all(db, round_, self._mark)
        if touched or not ours:
            self._take(touched, run, round_)
            standing.forget(db, self._mark)
            self.view.stay()
        self._written = db.total_changes

    def silent(self, tick: int) -> list[int]:
        """Who has not spoken after this tick of the term."""
        return self.silence.due(tick, self._is_live)

    def late_with_progress(self, tick: int) -> list[int]:
        """Who may be overdue by this tick of the term: see `leases.owing`."""
        return self.progress.due(tick, self._is_live)

    def fastest(self) -> float:
        """Tokens per second of the fastest live site."""
        if self._fastest is None:
            rates = (one.tokens_per_s for one in self.standings.values() if one.is_live)
            self._fastest = max(rates, default=0.0)
        return self._fastest

    def gets_ahead(self, seq: int) -> bool:
        """Whether what it wants is for the next round."""
        one = self.standings[seq]
        return bool(self._ahead) and (one.has_delivered or one.num_granted >= (one.quota or 0))

    def _is_live(self, seq: int) -> bool:
        return seq in self.standings and self.standings[seq].is_live

    def _clear(self, frame: tuple[object, ...]) -> None:
        for group in (self.leaving, self.ready, self.seeking, self.late, self.holding, self.idle):
            group.clear()
        for more in (self.holders, self.suspect, self.unjudged, self.changed):
            more.clear()
        for kept in (self.wanting, self.silence, self.progress, self.standings, self._quotas):
            kept.clear()
        self.joins.clear()
        self.doors.clear()
        self.num_wanted = self.num_held = self.num_left = self.num_quota = self.num_undecided = 0
        self.num_changes += 1
        self._frame, self._fastest = frame, None

    def _take(self, touched: set[int], run: Run, round_: Round | None) -> None:
        config = self.view.config()
        self._ahead = blocks_ahead(config, run.version)
        found, quotas = standing.load(self.view.db, round_)
        if min(touched, default=0) < 0:
            self._take_joins()
        for seq in touched:
            if seq <= 0:
                continue  # a join, or RETENTION
            old = self.standings.pop(seq, None)
            if old is not None:
                self._drop(seq, old)
            if seq in quotas:
                self.num_quota += quotas[seq] - self._quotas.get(seq, 0)
                self._quotas[seq] = quotas[seq]
            new = found.get(seq)
            if new is not None:
                self.standings[seq] = new
                self._add(seq, new, run, config.outer.max_staleness, config.limits.refusals)
            self.changed.add(seq)
            known = new or old
            if known is not None and known.site in self.joins:
                self.doors.add(known.site)
        if len(self.changed) > 2 * len(self.standings) + 64:  # nobody has looked for long
            self.changed.clear()
            self.num_changes += 1

    def _take_joins(self) -> None:
        """Whoever stands at the door; there is one join of a site at most."""
        waiting = {join.site: join for join in self.view.waiting_joins()}
        self.doors &= waiting.keys()
        self.doors |= {site for site, join in waiting.items() if self.joins.get(site) != join}
        self.joins = waiting

    def _drop(self, seq: int, old: Standing) -> None:
        if old.tokens_per_s == self._fastest:
            self._fastest = None
        for group in (self.leaving, self.ready, self.seeking, self.late, self.holding, self.idle):
            group.discard(seq)
        self.holders.discard(seq)
        self.suspect.discard(seq)
        self.unjudged.difference_update(delta.seq for delta in old.deltas)
        self.num_undecided -= old.num_undecided
        self.num_held -= old.num_held
        if old.quota is not None:
            self.num_left -= old.leased + old.training
        self.num_wanted -= self.wanting.discard((old.site, seq))

    def _add(self, seq: int, one: Standing, run: Run, staleness: int, max_refusals: int) -> None:
        """Put an incarnation where the rules look for it; more often than need be does no harm,
        since they judge by the table, less often would."""
        self.num_undecided += one.num_undecided
        self.unjudged.update(delta.seq for delta in one.deltas if delta.state == "undecided")
        if any(
            delta.state == "void"
            or delta.spoiled
            or (delta.state == "undecided" and run.version - delta.base_version > staleness)
            for delta in one.deltas
        ):
            self.suspect.add(seq)
        if not one.is_live:
            return
        self.num_held += one.num_held
        if self._fastest is not None:
            self._fastest = max(self._fastest, one.tokens_per_s)
        if (
            one.state == "departing"
            or one.mismatches >= standing.UNFIT_MISMATCHES
            or one.refusals >= max_refusals
        ):
            self.leaving.add(seq)
        self.silence.set(seq, one.last_tick)
        self.progress.set(seq, one.progress_tick + NEVER_OVERDUE_TICKS + 1)
        usable = standing.usable(one.version, run.version, staleness)
        free = one.state == "live" and not one.drain
        if free and usable:
            self.ready.add(seq)
        if one.leased:
            self.holders.add(seq)
        if free and one.version == run.version and one.is_idle:
            self.idle.add(seq)
        is_owing = not one.has_delivered
        if one.quota is None:
            if free and usable and one.version == run.version:
                self.late.add(seq)
            return
        self.num_left += one.leased + one.training
        begun = one.num_held if run.state == "running" else one.num_held - one.leased
        if is_owing and begun:
            self.holding.add(seq)
        want = one.quota - one.num_granted
        if self._ahead:
            want = _with_ahead(one, one.quota, want, self._ahead)
        if free and usable and want > 0:
            self.wanting.add((one.site, seq), want)
            self.num_wanted += want
            if is_owing:
                self.seeking.add(seq)


def _with_ahead(one: Standing, quota: int, want: int, full: int) -> int:
    """What it wants where it trains beside the exchange: having delivered, as many blocks as it
    trains in a round; before, these beside its quota once it has begun the last of that."""
    ahead = max(1, min(full, quota))
    if one.has_delivered:
        return ahead - one.num_held
    if want > 0 or one.leased or not one.num_held:
        return want
    return min(quota + ahead, 2 * full) - one.num_granted


def blocks_ahead(config: RunConfig, version: int) -> int:
    """How many blocks an incarnation may hold for the next round, to train them while the exchange
    runs: a full quota where the run's overlap is delayed, and a next round is to come."""
    if config.outer.overlap == "none" or version + 1 == config.target.rounds:
        return 0
    return config.blocks_per_round


def of(view: View) -> Agenda:
    """The view's agenda, up to date."""
    agenda = view.agenda
    if agenda is None:
        agenda = view.agenda = Agenda(view)
    agenda.refresh()
    return agenda


def _frame(run: Run, round_: Round | None) -> tuple[object, ...]:
    """What concerns every incarnation at once: where it changes, all are looked at anew."""
    if round_ is None:
        return (run.name, run.state, run.version, run.term, None, "", 0)
    return (run.name, run.state, run.version, run.term, round_.round, round_.state, 0)
