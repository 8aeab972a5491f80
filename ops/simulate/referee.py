"""Who may say what, and when: terms, pens, incarnations and ticks, judged from the events alone.

The referee is told of every event and whether it stands (''), stands in part, or is void. What
stands though its writer might not speak, what was not done though it was due, and who was given up
though it spoke, is a violation that names its rule. Blocks and deltas are `ops.simulate.ledger`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eventlog.codec import Entry
from eventlog.config import RunConfig, Timing
from eventlog.events import (
    COORDINATOR,
    SITE,
    BlockStarted,
    DeltaPublished,
    RunCreated,
    SiteJoined,
    VersionApplied,
)
from ops.simulate.holdings import LEASED, Key
from ops.simulate.ledger import Ledger
from ops.simulate.lives import Lives

SLACK_TICKS = 8  # for what is due: a verdict, a download, a lease in which somebody was away


@dataclass(slots=True)
class Referee(Lives):
    """See the module's text."""

    due_since: int | None = None  # the tick since which the open round is to be cut

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

    # -- the run ----------------------------------------------------------------------------------

    def _run_created(self, event: RunCreated, entry: Entry, *_: Any) -> None:
        config = RunConfig.recorded(event.config)
        self.ledger = Ledger(config, event.data, self.fault)
        self.ledger.initial = event.parameters_blob
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
        if self.ledger.due(len(self.lives)) > self.ticks and not self._all_are_in():
            self.due_since = None  # (a departure lowers the quorum: what is due is due from now on)
        elif self.due_since is None:
            self.due_since = self.ticks
        elif self.ticks - self.due_since > SLACK_TICKS:
            self.fault("P2", "R13", f"the round should have been cut at tick {self.due_since}")
        for one in self.lives.values():
            if one.unfit_since is not None and self.ticks - one.unfit_since > SLACK_TICKS:
                self.fault("P8", "R14", f"{one.site} is unfit since {one.unfit_since}, and lives")

    # -- blocks and deltas ------------------------------------------------------------------------

    def _lease_granted(self, event: Any, entry: Entry, in_part: bool, now: float) -> None:
        one = self.lives.get(event.incarnation[0])
        if one is None or one.token != event.incarnation:
            self.fault("P4", "R2", f"blocks are granted to {event.site}, which does not live")
        elif one.departing and one.left_after != self._read:  # else the grant was overtaken
            self.fault("P7", "R10", f"{event.site} gets blocks though it has said that it leaves")
        elif one.version is None:
            self.fault("P1", "R10", f"{event.site} gets blocks before it holds a version")
        self.ledger.grant(event, entry.token, self.state, in_part)

    def _lease_stolen(self, event: Any, entry: Entry, in_part: bool, now: float) -> None:
        self.ledger.steal(event, in_part)
        if event.to is not None and event.to[0] in self.lives:
            self.ledger.members.add(event.to[0])  # it has a quota in the open round now

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
        for one in event.deltas:
            delta = self.ledger.deltas.get(one.delta[0])
            harm = self.spoiled.get(delta.event.blob) if delta is not None else None
            if harm:
                self.fault("P8", "R14", f"delta {one.delta[0]} of {one.site} is cut; it is {harm}")
        self.ledger.cut(event, self._missing(), self.ticks, len(self.lives))

    def _missing(self) -> list[str]:
        """Members of the round that hold blocks they will deliver, and have not."""
        round_, least = self.ledger.round, LEASED if self.state == "running" else LEASED + 1
        if round_ is None:
            return []
        delivered = {one.incarnation for one in self.ledger.undecided()}
        return [
            self.lives[seq].site
            for seq in sorted(self.ledger.members & self.lives.keys() - delivered)
            if any(phase >= least for phase in self.ledger.of(seq).values())
        ]

    def _all_are_in(self) -> bool:
        """R13: whether every live member of the open round has delivered, so that it is to be cut;
        where one has not and holds nothing either, it depends on whether it is given some."""
        round_, delivered = self.ledger.round, {one.incarnation for one in self.ledger.undecided()}
        if round_ is None or round_.cut is not None or not delivered:
            return False
        return self.ledger.members & self.lives.keys() <= delivered

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
        joiners = [one for one in self.lives.values() if one.version is None and not one.departing]
        self.ledger.release(event, self._read, [one.start for one in joiners])
