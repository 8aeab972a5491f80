"""What a hub does next: a pure function of its fold of the log and of what its trainer reported.

The hub judges its own blocks and deltas with the fold everybody uses, and takes decisions about
others as judged (R16). The shell (`hub.py`, or a simulator) reports with `on_...` and carries out
what `actions` returns; each action is asked for once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eventlog import phases
from eventlog.codec import Entry
from eventlog.events import DeltaPublished, DeltaRefused, Heartbeat, LeaseReclaimed, SiteJoined
from leases import retention
from leases.rows import Block, Incarnation
from leases.states import LEASED, TRAINED, TRAINING, is_void
from sitehub import boundary, delivery, door, evaluating, saved, settling, watchdog
from sitehub.actions import Action, Append, Drop, Leave
from sitehub.state import HubState, Leaving, TrainerState

MAX_TRAINERS = 3  # trainers in a row that die before one completes a block
MAX_APPEND = 200  # events of one batch


@dataclass(slots=True)
class HubLogic:
    """One hub's mind. `hub` is its state besides the fold that `hub.view` reads."""

    hub: HubState

    # -- what happened ----------------------------------------------------------------------------

    def on_entry(self, entry: Entry, void: str) -> None:
        """An event was folded. Refusals and reclaims of our own work need an answer."""
        hub, event = self.hub, entry.event
        if is_void(void) or hub.incarnation is None:
            return
        if isinstance(event, DeltaRefused) and event.site == hub.site:
            delta = hub.view.delta(event.delta[0])
            if delta is not None and delta.incarnation == hub.incarnation[0]:
                hub.rebase = bool(hub.rebase) or event.values
        if isinstance(event, LeaseReclaimed) and event.incarnation == hub.incarnation:
            kept = any(block.state != LEASED for block in hub.held())  # started ones stay ours
            mine = {(epoch, block) for epoch, block, _ in hub.done | hub.claimed}
            if mine & set(event.blocks) and not kept:
                hub.discard, hub.rebase = True, bool(hub.rebase)
                hub.forget_work()

    def on_ready(self, report: dict[str, Any]) -> None:
        """The trainer's model stands."""
        self.hub.trainer.ready, self.hub.trainer.starting = report, False
        self.hub.unsettled, self.hub.settling = list(report.get("pending", ())), set()

    def on_progress(self, report: dict[str, Any]) -> None:
        """How far the trainer is, within a block."""
        trainer = self.hub.trainer
        trainer.step, trainer.tokens = report["step"], report["tokens"]
        trainer.tokens_per_s = report["tokens_per_s"]
        trainer.step_s = report.get("slowest_step_s", report.get("step_s", 0.0))

    def on_trainer_gone(self, reason: str) -> None:
        """R4: an incarnation does not outlive its trainer's memory."""
        hub = self.hub
        hub.trainer = TrainerState(num_deaths=hub.trainer.num_deaths + 1)
        hub.depart("trainer", reason)
        if hub.trainer.num_deaths >= MAX_TRAINERS and hub.leaving is None:
            why = f"{hub.trainer.num_deaths} trainers in a row died: {reason}"
            hub.leaving = Leaving("trainer", why, door.FAILED)

    def on_answer(self, answer: dict[str, Any], now: float) -> None:
        """The trainer has carried out its command, or says why it could not."""
        hub, did = self.hub, answer["did"]
        if did in ("save", "resume"):  # for the next life; this one goes on in any case
            hub.trainer.saving = hub.trainer.saving and did != "save"
            hub.trainer.busy = "" if hub.trainer.busy == did else hub.trainer.busy
            hub.unsettled = list(answer.get("pending", hub.unsettled))
            return
        if did == "settle":
            settling.on_settled(hub, answer)
            if "error" not in answer:
                return
        if hub.trainer.beside == did:
            hub.trainer.beside = ""
        elif did != "settle":
            hub.trainer.busy = ""
        if "error" in answer:
            code = "unfit" if did == "publish" else "trainer"
            hub.publication = None if did == "publish" else hub.publication
            hub.trainer.cold = hub.incarnation is None
            hub.depart(code, f"{did} failed: {answer['error']}")
        elif did == "train":
            boundary.on_trained(hub, answer)
        elif did == "publish":
            delivery.on_cut(hub, answer)
        elif did in ("load", "apply"):
            boundary.on_version(hub, answer)
        elif did == "evaluate":
            evaluating.on_evaluated(hub, answer)

    def on_cut(self) -> None:
        """The trainer has cut its delta: it may train while it writes the file."""
        self.hub.trainer.busy, self.hub.trainer.beside = "", "publish"
        self.hub.trainer.num_beside += 1

    def on_saving(self) -> None:
        """The trainer has copied what it saves: it may train while it writes it."""
        self.hub.trainer.busy = ""

    def on_appended(self, num: int, sequence: int, now: float) -> None:
        """The head of the queue is in the log; whether it holds, the fold says."""
        hub = self.hub
        first = hub.queue[0]
        hub.appending, hub.last_append = False, now
        if any(isinstance(event, DeltaPublished) for event in hub.queue[:num]):
            hub.delivered_at = now
        del hub.queue[:num]
        if isinstance(first, SiteJoined):
            hub.join_seq, hub.joining = sequence, False

    def on_overtaken(self) -> None:
        """Another writer stood on our subject; what is queued is tried again behind it."""
        self.hub.appending = False

    def on_fetched(self, blob: str, now: float) -> None:
        """A blob is in the work folder."""
        self.hub.files.add(blob)
        self.hub.lacking.pop(blob, None)
        self.hub.transfers.end(blob)
        self.hub.spent(phases.DOWNLOAD, now - self.hub.fetching.pop(blob))

    def on_missing(self, blob: str, now: float) -> None:
        """A blob we need is not in the store, or damaged: ask again, each time later, and say so
        (P6). A snapshot serves as well; whoever holds the state stores one when it hears of it."""
        hub = self.hub
        hub.fetching.pop(blob, None)
        hub.transfers.end(blob)
        hub.trainer.cold = hub.incarnation is None
        pause_s = min(2 * hub.lacking.get(blob, (0.0, 0.5))[1], hub.view.timing().lease_s)
        hub.lacking[blob] = (now + pause_s, pause_s)

    def on_stored(self, name: str, blob: str, num_bytes: int, seconds: float) -> None:
        """A file of the work folder is stored as a blob."""
        self.hub.transfers.end(name)
        delivery.on_stored(self.hub, name, blob, num_bytes, seconds)

    def ask_to_leave(self, code: str, reason: str, exit_code: int) -> None:
        """A signal: end the block, deliver what is trained, depart (P7)."""
        if self.hub.leaving is None:
            self.hub.leaving = Leaving(code, reason, exit_code)

    # -- what to do -------------------------------------------------------------------------------

    def actions(self, now: float) -> list[Action]:
        """Everything that can be begun now. Who leaves waits for its checkpoint, within bounds."""
        hub, found = self.hub, self._actions(now)
        if not hub.trainer.saving:
            return found
        if now - hub.trainer.saving_since > hub.view.config().limits.compile_s:
            return found
        return [action for action in found if not isinstance(action, Leave)]

    def _actions(self, now: float) -> list[Action]:
        hub = self.hub
        if not hub.view.exists():
            return []
        run = hub.view.run()
        if run.state == "finished":
            return [Leave(door.GOOD, f"the run has finished: {run.reason}")]
        if run.read_only:  # R17: what it cannot read may have taken its blocks
            return [Leave(door.REFUSED, f"this atoll is too old for the run: {run.read_only}")]
        ended = watchdog.watch(hub, now) + self._tidy()
        if hub.incarnation is None:
            ended += door.knock(hub, now)
        if hub.incarnation is None:
            return ended + self._flush()
        one = hub.view.incarnation(hub.incarnation[0])
        assert one is not None, "an admitted incarnation stays in the table"
        if one.state == "departed":
            return ended + door.departed(hub, one)
        return ended + self._live(one, now) + self._flush()

    def _live(self, one: Incarnation, now: float) -> list[Action]:
        hub, held = self.hub, self.hub.held()
        if one.state == "departing" and hub.leaving is not None and not hub.appending:
            return self._good_bye(hub.leaving, now)
        delivery.settle(hub, held)
        delivery.note_decision(hub, now)
        self._consider_leaving(one, held, now)
        found: list[Action] = []
        if hub.trainer.ready is not None:
            found += boundary.exchange(hub, now) + settling.settle(hub)
        if hub.trainer.ready is not None and not hub.trainer.busy:
            found += boundary.next_command(hub, held, now)
        if not hub.departing:
            boundary.announce(hub)
            delivery.claim(hub, held, now)
            found += delivery.deliver(hub, held)
            if saved.is_farewell(hub, held) and not (hub.queue or hub.appending):
                found += boundary.tell(hub, saved.command(hub, now))
            self._consider_departing(held)
            self._beat(now)
        return found

    def _consider_leaving(self, one: Incarnation, held: list[Block], now: float) -> None:
        """Whether walltime, a drain or the run's stop asks us to go (P7, R2)."""
        hub, run = self.hub, self.hub.view.run()
        if hub.leaving is not None:
            return
        left_s = math.inf if hub.walltime_end is None else hub.walltime_end - now
        if left_s < hub.view.timing().margin_s + delivery.likely_block_s(hub):
            why = f"its job ends in {left_s:.0f} s"
            hub.leaving = Leaving("walltime", why, door.TEMPORARY)
        elif one.drain:
            hub.leaving = Leaving("drained", "the operator asked it to leave", door.GOOD)
        elif run.state == "stopping" and not any(block.state == TRAINING for block in held):
            hub.leaving = Leaving("drained", f"the run stops: {run.reason}", door.GOOD)

    def _good_bye(self, leaving: Leaving, now: float) -> list[Action]:
        """Our departure is in the log and everything delivered before it: the coordinator's answer
        is a courtesy, and a job that ends does not wait for one that is not there."""
        if now - self.hub.last_append < self.hub.view.timing().lease_s:
            return []
        return [Leave(leaving.exit_code, f"{leaving.reason}; no coordinator has answered yet")]

    def _consider_departing(self, held: list[Block]) -> None:
        """Say good-bye once nothing is in training and nothing trained is undelivered, be its end
        folded already or only on its way through the log (P7)."""
        hub = self.hub
        if hub.leaving is None or hub.trainer.busy or hub.publication is not None:
            return
        if hub.queue or hub.appending or hub.done or any(one.state == TRAINED for one in held):
            return
        hub.depart(hub.leaving.code, hub.leaving.reason)

    def _beat(self, now: float) -> None:
        """R9: speak when silent otherwise, of what the trainer has done."""
        hub = self.hub
        interval_s = hub.view.timing().heartbeat_s(hub.view.run().live)
        if hub.queue or hub.appending or now - hub.last_append < interval_s:
            return
        left_s = None if hub.walltime_end is None else max(0.0, hub.walltime_end - now)
        hub.queue.append(
            Heartbeat.model_validate(
                {
                    "phase": self._phase(),
                    "step": hub.trainer.step,
                    "tokens": hub.trainer.tokens,
                    "tokens_per_s": hub.trainer.tokens_per_s,
                    "version": hub.trainer.version,
                    "walltime_left_s": left_s,
                    "step_s": hub.trainer.step_s or None,
                    "missing": self._missing(),
                    "transfer": hub.transfers.largest(),
                }
            )
        )

    def _missing(self) -> str | None:
        """A blob that it cannot have, if there is one that the run is to have: what was released,
        which is past its time, is made up for by a later snapshot."""
        lacking = self.hub.lacking
        released = retention.still_released(self.hub.view.db, set(lacking)) if lacking else []
        return next((blob for blob in lacking if blob not in released), None)

    def _phase(self) -> str:
        if self.hub.trainer.version is None:
            return "starting"
        if self.hub.trainer.busy == "evaluate":
            return "evaluating"
        if self.hub.trainer.busy == "train" and self.hub.overlaps:
            return "training"
        if self.hub.publication is not None:
            return "publishing"
        if self.hub.fetching or self.hub.trainer.beside == "apply":
            return "applying"
        if self.hub.lacking and not self.hub.trainer.busy:
            return "applying"
        return "training" if self.hub.trainer.busy == "train" else "waiting"

    def _tidy(self) -> list[Action]:
        names, self.hub.unneeded = tuple(self.hub.unneeded), []
        return [Drop(names)] if names else []

    def _flush(self) -> list[Action]:
        if not self.hub.queue or self.hub.appending:
            return []
        self.hub.appending = True
        return [Append(tuple(self.hub.queue[:MAX_APPEND]))]
