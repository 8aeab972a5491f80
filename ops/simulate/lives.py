"""Who may speak in a simulated run: pens, terms, incarnations, judged from the events alone.

The part of the referee (`ops.simulate.referee`) that is about writers: who is the next of a
subject, whose term it is, which incarnation lives, and who was given up though it spoke.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eventlog.codec import Entry, Envelope
from eventlog.config import Timing
from eventlog.events import (
    COORDINATOR,
    CoordinatorElected,
    Event,
    Heartbeat,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteJoined,
    Token,
    VersionApplied,
)
from ops.simulate.holdings import Fault
from ops.simulate.ledger import Ledger

MANY_JOINS, MINUTE_S = 30, 60.0  # of a site: one that crashes is back every few seconds
ON_ITS_WAY_S = 1.0  # what was said so lately may not have been read
_GETS_ON = ("block.started", "block.completed", "version.applied", "evaluation.completed")
LACK_TICKS = 4 * Timing.BASE_K  # of a term, for a look at the store and a snapshot to be stored
MANY_BEATS = 10  # heartbeats of an incarnation that came too early, before it is said


@dataclass(slots=True)
class Life:
    """One incarnation that lives."""

    token: Token
    site: str
    term: int  # of its last event, and
    tick: int  # how many ticks of that term there had been
    heard_s: float  # the virtual time of its last event
    progress: tuple[int, int] = (0, 0)  # term and tick at which its trainer last got on
    decision: int = 0  # the newest decision when it last spoke, and
    before: tuple[int, int, tuple[int, int]] = (0, 0, (0, 0))  # term, tick, progress until then
    step: int = 0
    version: int | None = None
    mismatches: int = 0
    refusals: int = 0  # in a row, for its deltas' values
    unfit_since: int | None = None
    departing: str = ""
    left_after: int = 0  # the newest decision when it said that it leaves
    beats: int = 0
    early: int = 0
    lacks: tuple[str, int, int] | None = None  # a blob; term and tick since which it says so
    start: int = 0  # the newest version that had a snapshot when it was admitted


@dataclass(slots=True)
class Join:
    """A site at the door."""

    token: Token
    event: SiteJoined


@dataclass(slots=True)
class Lives:
    """`fault` is told what must not be; `speaks(token, since_s)`: whether nothing has kept
    that incarnation's hub from speaking since then. `spoiled`: blobs that a trainer has written
    badly, and how; `snapshot_s`: how long the slowest site fetches a snapshot."""

    fault: Fault
    speaks: Callable[[Token, float], bool] = lambda token, since_s: False
    spoiled: Mapping[str, str] = field(default_factory=dict)
    snapshot_s: float = 0.0
    ledger: Ledger = field(init=False)
    lives: dict[int, Life] = field(default_factory=dict)
    departures: list[dict[str, Any]] = field(default_factory=list)
    state: str = "none"
    term: int = 0
    term_ticks: int = 0
    ticks: int = 0
    _decision: int = 0  # sequence of the newest decision
    _read: int = 0  # and of the one before this append, through which its writer had read
    _pens: dict[str, tuple[int, str]] = field(default_factory=dict)
    _joins: dict[str, Join] = field(default_factory=dict)
    _came: dict[str, list[float]] = field(default_factory=dict)  # when a site joined, lately
    _backoffs: dict[str, int] = field(default_factory=dict)
    _timing: Timing = field(init=False)

    def begin_append(self) -> None:
        """What follows stands in another append than what came before (R2)."""
        self._read = self._decision
        if self.state != "none":
            self.ledger.freed.clear()

    def _numbered(self, entry: Entry, envelope: Envelope) -> bool:
        """R6, R5: the next of its subject; a decision names the one before."""
        subject = entry.record.subject
        n, name = self._pens.get(subject, (0, ""))
        if envelope.source != subject or envelope.n != n + 1:
            return False
        if subject == COORDINATOR and (envelope.previous or "") != name:
            return False
        self._pens[subject] = (envelope.n, envelope.id)
        return True

    def _since(self, term: int, tick: int) -> int:
        """Ticks of this term since then."""
        return self.term_ticks - (tick if term == self.term else 0)

    def pen(self, subject: str) -> tuple[int, str]:
        """Counter and id of a subject's last numbered event."""
        return self._pens.get(subject, (0, ""))

    # -- who speaks -------------------------------------------------------------------------------

    def _decided(self, event: Event, envelope: Envelope, sequence: int) -> None:
        if envelope.term != self.term and not isinstance(event, CoordinatorElected):
            what = f"{event.type} of term {envelope.term} stands in term {self.term}"
            self.fault("P1", "R5", what)
        self._decision = sequence

    def _writer(self, envelope: Envelope) -> tuple[str, int]:
        return envelope.source.partition(".")[2], (envelope.incarnation or (0, ""))[0]

    def _may_speak(self, entry: Entry) -> bool:
        """P4: the writer's incarnation lives, and is of this site."""
        assert entry.envelope is not None
        token, site = entry.envelope.incarnation, entry.record.subject.partition(".")[2]
        one = self.lives.get(token[0]) if token else None
        return one is not None and one.token == token and one.site == site

    def _heard(self, envelope: Envelope, now: float) -> None:
        one = self.lives[self._writer(envelope)[1]]
        self._keep(one)
        one.term, one.tick, one.heard_s = self.term, self.term_ticks, now

    def _keep(self, one: Life) -> None:
        """How it stood at the newest decision: the next one may not have read on."""
        if one.decision != self._decision:
            one.before = (one.term, one.tick, one.progress)
            one.decision = self._decision

    def _report(self, entry: Entry, envelope: Envelope, event: Event, now: float) -> None:
        one = self.lives[self._writer(envelope)[1]]
        self._keep(one)
        if isinstance(event, Heartbeat):
            self._beat(one, event, now)
        elif event.type in _GETS_ON:
            self._got_on(one)
            one.lacks = one.lacks if event.type != "version.applied" else None
        self._heard(envelope, now)

    def _got_on(self, one: Life) -> None:
        one.progress = (self.term, self.term_ticks)

    def _beat(self, one: Life, event: Heartbeat, now: float) -> None:
        """R9: only after silence; of what the trainer has done."""
        one.beats += 1
        one.early += now - one.heard_s < 0.6 * self._timing.heartbeat_s(len(self.lives))
        if one.early >= MANY_BEATS and 2 * one.early > one.beats:
            self.fault("P2", "R9", f"{one.site} beats though it had spoken, {one.early} times")
            one.early = 0
        self._lacks(one, event.missing)
        if event.step != one.step:
            one.step = event.step
            self._got_on(one)

    def _lacks(self, one: Life, blob: str | None) -> None:
        """R20: whoever leads makes up for a blob that a site cannot have, before long."""
        if blob is None or one.lacks is None or one.lacks[:2] != (blob, self.term):
            one.lacks = (blob, self.term, self.term_ticks) if blob else None
        elif self.term_ticks - one.lacks[2] > LACK_TICKS + self._timing.ticks(self.snapshot_s):
            self.fault("P2", "R20", f"{one.site} cannot have blob {blob[:12]}, and nobody helps")

    def _failed(self, envelope: Envelope, event: Event) -> None:
        if isinstance(event, VersionApplied) and self.state != "finished":
            one = self.lives[self._writer(envelope)[1]]
            one.mismatches += 1
            what = f"{one.site} holds another version {event.version} than was committed"
            self.fault("P3", "R18", what)

    # -- sites ------------------------------------------------------------------------------------

    def _site_joined(self, event: SiteJoined, entry: Entry, in_part: bool, now: float) -> None:
        """P2: whoever is not served where it comes does not come over and over, without a pause."""
        site = entry.record.subject.partition(".")[2]
        self._joins[site] = Join(entry.token, event)
        lately = [at_s for at_s in self._came.get(site, []) if at_s > now - MINUTE_S]
        self._came[site] = [*lately, now]
        if len(lately) >= MANY_JOINS:
            self.fault("P2", "R13", f"{site} joins for the {len(lately) + 1}th time in a minute")

    def _site_admitted(self, event: SiteAdmitted, entry: Entry, in_part: bool, now: float) -> None:
        """R11: nobody else of that name lives; R14: nor is it to wait."""
        join = self._joins.pop(event.site, None)
        if join is None or join.token != event.join:
            self.fault("P4", "R11", f"{event.site} is admitted, and had not asked")
        if any(one.site == event.site for one in self.lives.values()):
            self.fault("P4", "R11", f"{event.site} is admitted twice")
        if self._backoffs.get(event.site, 0) > self.ticks:
            self.fault("P8", "R14", f"{event.site} is admitted before its time")
        one = Life(entry.token, event.site, self.term, self.term_ticks, now)
        one.progress = (self.term, self.term_ticks)
        one.start = max(self.ledger.snapshots, default=0)
        self.lives[entry.record.sequence] = one

    def _site_refused(self, event: Any, entry: Entry, *_: Any) -> None:
        join = self._joins.get(event.site)
        if join is not None and join.token == event.join:
            del self._joins[event.site]

    def _site_departing(self, event: SiteDeparting, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        one = self.lives[self._writer(entry.envelope)[1]]
        if not one.departing:
            one.departing, one.left_after = event.code, self._decision

    def _site_departed(self, event: SiteDeparted, entry: Entry, in_part: bool, now: float) -> None:
        """R4, R8, R10, R11, R14: with what it held, and for a reason that is one."""
        one = self.lives.pop(event.incarnation[0], None)
        if one is None or one.site != event.site:
            return self.fault("P4", "R4", f"{event.site} departs, and does not live")
        if not self._has_reason(event, one, len(self.lives) + 1):
            self.fault("P4", "R8", f"{event.site} departs as {event.code}: {event.reason}")
        lost_s = self._timing.lost_ticks(len(self.lives) + 1) * self._timing.tick_s
        silent = event.code == "lost" and "silent" in event.reason
        spoke = now - one.heard_s < ON_ITS_WAY_S
        if silent and not spoke and self.speaks(one.token, now - lost_s):
            self.fault("P2", "R9", f"{event.site} is lost though its hub lived and could speak")
        if event.backoff_ticks:
            self._backoffs[event.site] = self.ticks + event.backoff_ticks
        unstarted, started = self.ledger.depart(event.incarnation[0])
        self.departures.append(
            {
                "site": event.site,
                "code": event.code,
                "reason": event.reason,
                "tick": self.ticks,
                "at_s": round(now, 3),
                "unstarted": unstarted,
                "started": started,
            }
        )

    def _has_reason(self, event: SiteDeparted, one: Life, num_live: int) -> bool:
        term, tick, progress = one.term, one.tick, one.progress
        if one.decision == self._read:  # it has spoken since, and was overtaken
            term, tick, progress = one.before
        silent, stalled = self._since(term, tick), self._since(*progress)
        is_lost = silent >= self._timing.lost_ticks(num_live)
        join = self._joins.get(one.site)
        match event.code:
            case "lost":
                return is_lost or stalled > 2 * Timing.BASE_K
            case "replaced":
                return join is not None and (is_lost or join.event.predecessor == one.token)
            case "unfit":
                limit = self.ledger.config.limits.refusals
                return one.refusals >= limit or one.mismatches > 1 or one.departing == "unfit"
            case code:
                return one.departing == code
