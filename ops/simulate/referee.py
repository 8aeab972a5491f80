"""Who may say what, and when: terms, pens, incarnations and ticks, judged from the events alone.

The referee is told of every event and whether it stands (''), stands in part, or is void. What
stands though its writer might not speak, what was not done though it was due, and who was given up
though it spoke, is a violation that names its rule. Blocks and deltas are `ops.simulate.ledger`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eventlog.codec import Entry, Envelope
from eventlog.config import RunConfig, Timing
from eventlog.events import (
    COORDINATOR,
    SITE,
    BlockStarted,
    CoordinatorElected,
    DeltaPublished,
    Event,
    Heartbeat,
    RunCreated,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteJoined,
    Token,
    VersionApplied,
)
from ops.simulate.ledger import LEASED, Fault, Key, Ledger

SLACK_TICKS = 8  # for what is due: a verdict, a download, a lease in which somebody was away
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
    beats: int = 0
    early: int = 0


@dataclass(slots=True)
class Join:
    """A site at the door."""

    token: Token
    event: SiteJoined


@dataclass(slots=True)
class Referee:
    """`fault` is told what must not be; `speaks(site, since_s)`: whether nothing has kept the
    site's hub from speaking since then."""

    fault: Fault
    speaks: Callable[[str, float], bool] = lambda site, since_s: False
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
    _backoffs: dict[str, int] = field(default_factory=dict)
    _timing: Timing = field(init=False)

    def begin_append(self) -> None:
        """What follows stands in another append than what came before (R2)."""
        self._read = self._decision
        if self.state != "none":
            self.ledger.freed.clear()

    def see(self, entry: Entry, void: str, now: float) -> None:
        """Judge one event. `void`: the fold's word on it."""
        envelope, event = entry.envelope, entry.event
        if envelope is None:
            return self._unheard(entry, void)
        in_order = self._numbered(entry, envelope)
        if event is None:
            return self._unheard(entry, void)
        if isinstance(event, DeltaPublished) and void and in_order and self._may_speak(entry):
            site, seq = self._writer(envelope)
            self.ledger.publish(entry.record.sequence, site, seq, event, self.ticks, True)
            self._heard(envelope, now)
        if void and not void.startswith("in part"):
            if in_order and entry.record.subject.startswith(SITE) and self._may_speak(entry):
                self._heard(envelope, now)
                self._failed(envelope, event)
            return
        if not in_order:
            what = f"{event.type} stands, though it is not the next of {entry.record.subject}"
            self.fault("P1", "R6", what)
        if entry.record.subject == COORDINATOR:
            self._decided(event, envelope, entry.record.sequence)
        elif entry.record.subject.startswith(SITE) and not isinstance(event, SiteJoined):
            if not self._may_speak(entry):
                what = f"{event.type} of {envelope.source} stands; its incarnation does not live"
                return self.fault("P4", "R3", what)
            self._report(entry, envelope, event, now)
        does = getattr(self, "_" + event.type.replace(".", "_"), None)
        if does is not None:
            does(event, entry, void.startswith("in part"), now)

    def _unheard(self, entry: Entry, void: str) -> None:
        if not void:
            self.fault("P8", "R17", f"what cannot be read stands: {entry.problem}")

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
        elif event.type in ("block.started", "block.completed", "version.applied"):
            self._got_on(one)
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
        if event.step != one.step:
            one.step = event.step
            self._got_on(one)

    def _failed(self, envelope: Envelope, event: Event) -> None:
        if isinstance(event, VersionApplied) and self.state != "finished":
            one = self.lives[self._writer(envelope)[1]]
            one.mismatches += 1
            what = f"{one.site} holds another version {event.version} than was committed"
            self.fault("P3", "R18", what)

    # -- the run ----------------------------------------------------------------------------------

    def _run_created(self, event: RunCreated, entry: Entry, *_: Any) -> None:
        config = RunConfig.model_validate(event.config)
        self.ledger = Ledger(config, event.data, self.fault)
        self._timing, self.state = Timing.of(config.lease_s), "running"

    def _run_paused(self, *_: Any) -> None:
        self.state = "paused"

    def _run_resumed(self, *_: Any) -> None:
        self.state = "running"

    def _run_stopped(self, *_: Any) -> None:
        self.state = "stopping"

    def _run_finished(self, event: Any, *_: Any) -> None:
        if (event.version, event.tokens) != (self.ledger.version, self.ledger.merged_tokens):
            self.fault("P1", "R15", f"the run ends with {event.tokens} tokens")
        self.ledger.finish()
        self.state = "finished"

    def _coordinator_elected(self, event: Any, entry: Entry, *_: Any) -> None:
        self.term, self.term_ticks = entry.record.sequence, 0

    def _coordinator_tick(self, *_: Any) -> None:
        """R8: only while somebody is waited for. R13, R14: what is due by now has been done."""
        self.term_ticks += 1
        self.ticks += 1
        self._backoffs = {site: at for site, at in self._backoffs.items() if at >= self.ticks}
        if not self.lives and not self._backoffs:
            self.fault("P2", "R8", "a tick, with nobody live or waited for")
        late = self.ticks - self.ledger.due(len(self.lives))
        if late > SLACK_TICKS:
            self.fault("P2", "R13", f"the round should have been cut {late} ticks ago")
        for one in self.lives.values():
            if one.unfit_since is not None and self.ticks - one.unfit_since > SLACK_TICKS:
                self.fault("P8", "R14", f"{one.site} is unfit since {one.unfit_since}, and lives")

    # -- sites ------------------------------------------------------------------------------------

    def _site_joined(self, event: SiteJoined, entry: Entry, *_: Any) -> None:
        self._joins[entry.record.subject.partition(".")[2]] = Join(entry.token, event)

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
        self.lives[entry.record.sequence] = one

    def _site_refused(self, event: Any, entry: Entry, *_: Any) -> None:
        join = self._joins.get(event.site)
        if join is not None and join.token == event.join:
            del self._joins[event.site]

    def _site_departing(self, event: SiteDeparting, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        one = self.lives[self._writer(entry.envelope)[1]]
        one.departing = one.departing or event.code

    def _site_departed(self, event: SiteDeparted, entry: Entry, in_part: bool, now: float) -> None:
        """R4, R8, R10, R11, R14: with what it held, and for a reason that is one."""
        one = self.lives.pop(event.incarnation[0], None)
        if one is None or one.site != event.site:
            return self.fault("P4", "R4", f"{event.site} departs, and does not live")
        if not self._has_reason(event, one, len(self.lives) + 1):
            self.fault("P4", "R8", f"{event.site} departs as {event.code}: {event.reason}")
        lost_s = self._timing.lost_ticks(len(self.lives) + 1) * self._timing.tick_s
        silent = event.code == "lost" and "silent" in event.reason
        if silent and self.speaks(event.site, now - lost_s):
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

    # -- blocks and deltas ------------------------------------------------------------------------

    def _lease_granted(self, event: Any, entry: Entry, in_part: bool, now: float) -> None:
        one = self.lives.get(event.incarnation[0])
        if one is None or one.departing or one.token != event.incarnation:
            self.fault("P4", "R2", f"blocks are granted to {event.site}, which does not stay")
        elif one.version is None:
            self.fault("P1", "R10", f"{event.site} gets blocks before it holds a version")
        self.ledger.grant(event, entry.token, self.state, in_part)

    def _lease_stolen(self, event: Any, entry: Entry, in_part: bool, now: float) -> None:
        self.ledger.steal(event, in_part)

    def _lease_reclaimed(self, event: Any, entry: Entry, in_part: bool, now: float) -> None:
        self.ledger.reclaim(event, in_part)

    def _block_started(self, event: BlockStarted, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        incarnation = self._writer(entry.envelope)[1]
        self.ledger.start((event.epoch, event.block), event.lease, incarnation)

    def _block_completed(self, event: Any, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        incarnation = self._writer(entry.envelope)[1]
        self.ledger.complete((event.epoch, event.block), event.lease, incarnation)

    def _block_quarantined(self, event: Any, *_: Any) -> None:
        self.ledger.quarantine((event.epoch, event.block))

    def _epoch_closed(self, event: Any, *_: Any) -> None:
        self.ledger.close_epoch(event.epoch, event.blocks)

    def _delta_published(self, event: DeltaPublished, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        site, incarnation = self._writer(entry.envelope)
        self._got_on(self.lives[incarnation])
        self.ledger.publish(entry.record.sequence, site, incarnation, event, self.ticks, False)

    def _delta_refused(self, event: Any, *_: Any) -> None:
        one = self.lives.get(self.ledger.refuse(event) or 0)
        if one is not None:
            one.refusals += 1
            if one.refusals >= self.ledger.config.limits.refusals:
                one.unfit_since = self.ticks

    # -- rounds and versions ----------------------------------------------------------------------

    def _round_opened(self, event: Any, *_: Any) -> None:
        self.ledger.open(event, self.ticks, self.state)

    def _round_closed(self, event: Any, *_: Any) -> None:
        self.ledger.cut(event, self._missing(), self.ticks, len(self.lives))

    def _missing(self) -> list[str]:
        """Members of the round that hold blocks they will deliver, and have not."""
        round_, least = self.ledger.round, LEASED if self.state == "running" else LEASED + 1
        if round_ is None:
            return []
        delivered = {one.incarnation for one in self.ledger.undecided()}
        return [
            self.lives[seq].site
            for seq in sorted(round_.members & self.lives.keys() - delivered)
            if any(phase >= least for phase in self.ledger.of(seq).values())
        ]

    def committed(self, event: Any) -> list[tuple[Key, float]]:
        """A commit that stands: see `Ledger.commit`. For who holds θ against it."""
        merging = {self.ledger.deltas[seq].incarnation for seq in self._cut()}
        for seq in merging & self.lives.keys():
            self.lives[seq].refusals = 0
        return self.ledger.commit(event)

    def _cut(self) -> list[int]:
        round_ = self.ledger.round
        cut = round_.cut if round_ is not None else None
        return [seq for seq in cut or () if seq in self.ledger.deltas]

    def _version_applied(self, event: VersionApplied, entry: Entry, *_: Any) -> None:
        assert entry.envelope is not None
        one = self.lives[self._writer(entry.envelope)[1]]
        one.version, one.mismatches = event.version, 0
        known = self.ledger.updates.get(event.version)
        if known is not None and known.parameters_digest != event.parameters_digest:
            self.fault("P3", "R18", f"{one.site} holds another version {event.version}")

    def _snapshot_saved(self, event: Any, *_: Any) -> None:
        self.ledger.save(event)

    def _blobs_released(self, event: Any, *_: Any) -> None:
        self.ledger.release(event)
