"""What a hub does next: a pure function of its fold of the log and of what its trainer reported.

The hub judges its own blocks and deltas with the fold everybody uses, and takes decisions about
others as judged (R16). It trains a block only once its fold has the `BlockStarted` as valid (R7),
keeps a claim ahead so that no round trip to the broker costs training time, and never lets the
trainer's local progress differ from its completed, undelivered blocks (DESIGN 6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eventlog.codec import Entry
from eventlog.events import (
    BlockCompleted,
    BlockStarted,
    DeltaBlock,
    DeltaPublished,
    DeltaRefused,
    Event,
    Heartbeat,
    LeaseReclaimed,
    SiteDeparting,
    SiteJoined,
    Token,
    VersionApplied,
)
from leases.progress import share_done
from leases.rows import Block, Incarnation
from leases.states import LEASED, TRAINED, TRAINING, is_void
from leases.view import View
from sitehub.actions import Action, Append, Drop, Fetch, Leave, StartTrainer, Store, Tell

CLAIMS_AHEAD = 1  # blocks started in the log beside the one in training (R7)
MAX_TRAINERS = 3  # trainers in a row that die before they complete a block
GOOD, FAILED, REFUSED, TEMPORARY = 0, 1, 6, 75  # exit codes (DESIGN 9)


@dataclass(slots=True)
class Publication:
    """A delta on its way: cut from the trainer, stored, announced, judged."""

    blocks: list[Block]
    base_version: int
    name: str
    last: bool
    blob: str | None = None
    num_bytes: int = 0
    codec: str = ""
    norm: float = 0.0
    max_abs: float = 0.0
    announced: bool = False


@dataclass(slots=True)
class TrainerState:
    """What the hub knows of its trainer."""

    ready: dict[str, Any] | None = None
    starting: bool = False
    busy: str = ""  # the command under way
    version: int | None = None  # that it holds
    step: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    block_s: float = 0.0  # how long a block takes, an exponential average
    idle_since: float | None = None
    num_deaths: int = 0  # in a row


@dataclass(slots=True)
class HubLogic:
    """`walltime_end`: when the job ends, on the clock of `now`; None: never."""

    site: str
    view: View
    walltime_end: float | None = None
    predecessor: Token | None = None
    trainer: TrainerState = field(default_factory=TrainerState)
    incarnation: Token | None = None
    leaving: tuple[str, str, int] | None = None  # code, reason, exit code; asked for from outside
    _join_seq: int | None = None
    _joining: bool = False
    _queue: list[Event] = field(default_factory=list)
    _appending: bool = False
    _last_append: float = 0.0
    _publication: Publication | None = None
    _num_published: int = 0
    _rebase: bool | None = None  # a refusal to answer; True: with the inner state reset
    _discard: bool = False
    _claimed: set[tuple[int, int, int]] = field(default_factory=set)
    _done: set[tuple[int, int, int]] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)
    _fetching: set[str] = field(default_factory=set)
    _storing: bool = False
    _departing: bool = False
    _applied: int | None = None  # newest version announced by VersionApplied
    _phases: dict[str, float] = field(default_factory=dict)
    _fetch_began: dict[str, float] = field(default_factory=dict)

    # -- what happened ----------------------------------------------------------------------------

    def on_entry(self, entry: Entry, void: str) -> None:
        """An event was folded. Refusals and reclaims of our own work need an answer."""
        event = entry.event
        if is_void(void) or self.incarnation is None:
            return
        if isinstance(event, DeltaRefused) and event.site == self.site:
            delta = self.view.delta(event.delta[0])
            if delta is not None and delta.incarnation == self.incarnation[0]:
                self._rebase = bool(self._rebase) or event.values
        if isinstance(event, LeaseReclaimed) and event.incarnation == self.incarnation:
            named = set(event.blocks)
            started = any(block.state != LEASED for block in self._held())  # these were left to us
            mine = {(epoch, block) for epoch, block, _ in self._done | self._claimed}
            if named & mine and not started:
                self._discard = True
                self._rebase = bool(self._rebase)
                self._forget_work()

    def on_ready(self, report: dict[str, Any]) -> None:
        self.trainer.ready, self.trainer.starting = report, False

    def on_progress(self, report: dict[str, Any]) -> None:
        self.trainer.step = report["step"]
        self.trainer.tokens = report["tokens"]
        self.trainer.tokens_per_s = report["tokens_per_s"]

    def on_trainer_gone(self, reason: str) -> None:
        """R4: an incarnation does not outlive its trainer's memory."""
        deaths = self.trainer.num_deaths + 1
        self.trainer = TrainerState(num_deaths=deaths)
        if self.incarnation is not None and not self._departing:
            self._depart("trainer", reason)
        if deaths >= MAX_TRAINERS and self.leaving is None:
            self.leaving = ("trainer", f"{deaths} trainers died in a row; {reason}", FAILED)

    def on_answer(self, answer: dict[str, Any], now: float) -> None:
        """The trainer has carried out its command."""
        did, self.trainer.busy = answer["did"], ""
        if "error" in answer:
            self._on_error(did, answer["error"])
        elif did == "train":
            self._on_trained(answer, now)
        elif did == "publish":
            self._on_published(answer)
        elif did in ("load", "apply"):
            self._on_version(answer, did, now)

    def on_appended(self, num: int, sequence: int, now: float) -> None:
        self._appending, self._last_append = False, now
        first = self._queue[0]
        del self._queue[:num]
        if isinstance(first, SiteJoined):
            self._join_seq, self._joining = sequence, False

    def on_overtaken(self) -> None:
        """Another writer stood on our subject; what is queued still holds, or is void and shown."""
        self._appending = False

    def on_fetched(self, blob: str, now: float) -> None:
        self._fetching.discard(blob)
        self._files.add(blob)
        took = now - self._fetch_began.pop(blob, now)
        self._phases["download"] = self._phases.get("download", 0.0) + took

    def on_missing(self, blob: str, reason: str) -> None:
        """A version we still need is released: we are too far behind; start over as a joiner."""
        self._fetching.discard(blob)
        if self.incarnation is not None and not self._departing:
            self._depart("trainer", f"a blob it needs is gone: {reason}")

    def on_stored(self, name: str, blob: str, num_bytes: int, seconds: float) -> None:
        self._storing = False
        if self._publication is not None and self._publication.name == name:
            self._publication.blob, self._publication.num_bytes = blob, num_bytes
            self._phases["upload"] = seconds

    def ask_to_leave(self, code: str, reason: str, exit_code: int) -> None:
        """A signal or walltime: end the block, deliver what is trained, depart (P7)."""
        if self.leaving is None:
            self.leaving = (code, reason, exit_code)

    # -- what to do -------------------------------------------------------------------------------

    def actions(self, now: float) -> list[Action]:
        """Everything that can be started now; each is asked for once."""
        run = self.view.run()
        if not self.view.exists():
            return []
        if run.state == "finished":
            return [Leave(GOOD, f"the run has finished: {run.reason}")]
        if self.incarnation is None:
            return self._at_the_door()
        one = self.view.incarnation(self.incarnation[0])
        if one is None:
            return []
        if one.state == "departed":
            return self._departed(one)
        return self._alive(one, now)

    def _at_the_door(self) -> list[Action]:
        if self._join_seq is not None:
            return self._answered()
        if self.leaving is not None:
            return [Leave(self.leaving[2], self.leaving[1])]
        if self.trainer.ready is None:
            if self.trainer.starting:
                return []
            self.trainer.starting = True
            return [StartTrainer()]
        if self._joining or self.trainer.busy:
            return []
        self._joining = True
        report = self.trainer.ready
        self._queue = [
            SiteJoined(
                hardware=report["hardware"],
                software=report["software"],
                manifest_digest=report["manifest_digest"],
                arithmetic=report["arithmetic"],
                predecessor=self._living_predecessor(),
            )
        ]
        return self._flush()

    def _living_predecessor(self) -> Token | None:
        """Our lock's last incarnation, where it has not departed (R11)."""
        if self.predecessor is None:
            return None
        one = self.view.incarnation(self.predecessor[0])
        lives = one is not None and one.state != "departed" and one.token == self.predecessor
        return self.predecessor if lives else None

    def _answered(self) -> list[Action]:
        assert self._join_seq is not None
        answer = self.view.answer(self._join_seq)
        if answer is None or answer.state == "waiting":
            if self.leaving is not None:
                return [Leave(self.leaving[2], self.leaving[1])]
            return []
        if answer.state == "refused":
            return [Leave(REFUSED if answer.final else TEMPORARY, f"refused: {answer.reason}")]
        if answer.state == "superseded" or answer.incarnation is None:
            return [Leave(TEMPORARY, f"another process joined as {self.site} after this one")]
        one = self.view.incarnation(answer.incarnation)
        assert one is not None
        self.incarnation = one.token
        return []

    def _departed(self, one: Incarnation) -> list[Action]:
        if self._appending:
            return []
        if self.leaving is not None and one.code != "replaced":
            return [Leave(self.leaving[2], self.leaving[1])]
        if one.code in ("lost", "trainer"):  # join again, from the current version
            self._start_over()
            return []
        code = {"replaced": TEMPORARY, "unfit": REFUSED}.get(one.code, GOOD)
        return [Leave(code, f"departed ({one.code}): {one.reason}")]

    def _start_over(self) -> None:
        self.predecessor, self.incarnation, self._join_seq = None, None, None
        self._queue, self._departing, self._applied = [], False, None
        self._forget_work()
        self._rebase, self._discard, self.trainer.version = None, False, None

    def _forget_work(self) -> None:
        self._claimed, self._done = set(), set()
        if self._publication is not None and not self._publication.announced:
            self._publication = None

    def _alive(self, one: Incarnation, now: float) -> list[Action]:
        self._settle()
        held = self.view.held(one.token[0])
        self._consider_leaving(one, now)
        found: list[Action] = []
        if self.trainer.ready is not None and not self.trainer.busy:
            found += self._next_command(one, held, now)
        if not self._departing:
            self._claim(one, held, now)
            found += self._deliver()
            self._consider_departing(held)
            self._beat(now)
        return found + self._flush()

    def _settle(self) -> None:
        """Forget a publication once the log has it."""
        one = self._publication
        if one is None or not one.announced or self._appending or self._queue:
            return
        states = {block.state for block in one.blocks if self._state(block) == TRAINED}
        if not states:
            self._publication = None

    def _state(self, block: Block) -> str:
        """The block's state in the fold, while it is ours under the same lease."""
        assert self.incarnation is not None
        for held in self.view.held(self.incarnation[0]):
            if (held.epoch, held.block, held.lease) == (block.epoch, block.block, block.lease):
                return held.state
        return ""

    def _consider_leaving(self, one: Incarnation, now: float) -> None:
        if self.leaving is None and self.walltime_end is not None:
            left = self.walltime_end - now
            if left < self.view.timing().margin_s + self.trainer.block_s:
                self.leaving = ("walltime", f"its job ends in {left:.0f} s", TEMPORARY)
        if self.leaving is None and one.drain:
            self.leaving = ("drained", "the operator asked it to leave", GOOD)
        if self.leaving is None and self.view.run().state == "stopping" and not self._working(one):
            self.leaving = ("drained", f"the run stops: {self.view.run().reason}", GOOD)

    def _working(self, one: Incarnation) -> bool:
        return any(block.state == TRAINING for block in self.view.held(one.token[0]))

    # -- the trainer ------------------------------------------------------------------------------

    def _next_command(self, one: Incarnation, held: list[Block], now: float) -> list[Action]:
        """At a block boundary: answer refusals, take the newest version, publish, train."""
        if self.trainer.version is None:
            return self._load(now)
        if self._discard:
            self._discard = False
            return self._tell({"do": "discard"})
        if self._rebase is not None:
            reset, self._rebase = self._rebase, None
            return self._tell({"do": "rebase", "reset": reset})
        if self.trainer.version < self.view.run().version:
            return self._apply(now)
        if self._must_publish(one, held):
            return self._publish(held)
        return self._train(held, now)

    def _tell(self, command: dict[str, Any]) -> list[Action]:
        self.trainer.busy = command["do"]
        return [Tell(command)]

    def _load(self, now: float) -> list[Action]:
        """A joiner starts from the newest snapshot, or from the initial parameters."""
        run = self.view.run()
        snapshot = self.view.snapshot_at_most(run.version)
        version, blob, kind = 0, run.parameters_blob, "initial"
        if snapshot is not None and snapshot.snapshot_blob is not None:
            version, blob, kind = snapshot.version, snapshot.snapshot_blob, "snapshot"
        if blob not in self._files:
            return self._fetch(blob, now)
        return self._tell({"do": "load", "version": version, "path": blob, "kind": kind})

    def _apply(self, now: float) -> list[Action]:
        assert self.trainer.version is not None
        row = self.view.version(self.trainer.version + 1)
        if row is None:
            return []
        if row.update_blob not in self._files:
            return self._fetch(row.update_blob, now)
        return self._tell({"do": "apply", "version": row.version, "path": row.update_blob})

    def _fetch(self, blob: str, now: float) -> list[Action]:
        if blob in self._fetching:
            return []
        self._fetching.add(blob)
        self._fetch_began[blob] = now
        return [Fetch(blob)]

    def _train(self, held: list[Block], now: float) -> list[Action]:
        for block in held:
            key = _key(block)
            stale = self.leaving is not None and self.leaving[0] != "trainer"
            if block.state == TRAINING and key not in self._done and not stale:
                begin, end = self._progress(held, block)
                self._note_stall(now)
                return self._tell(
                    {
                        "do": "train",
                        "epoch": block.epoch,
                        "block": block.block,
                        "progress_from": begin,
                        "progress_to": end,
                        "tag": list(key),
                    }
                )
        if self.trainer.idle_since is None:
            self.trainer.idle_since = now
        return []

    def _progress(self, held: list[Block], block: Block) -> tuple[float, float]:
        """The run's progress at the block's start and end (DESIGN 4)."""
        index, version = self.view.index(), self.trainer.version or 0
        row = self.view.version(version)
        own = sum(index.tokens(b.block) for b in held if b.state == TRAINED)
        own += self._undecided_tokens()
        merged = row.merged_tokens if row else 0
        arguments = (self.view.config(), index, version, merged)
        return (
            share_done(*arguments, own),
            share_done(*arguments, own + index.tokens(block.block)),
        )

    def _undecided_tokens(self) -> int:
        assert self.incarnation is not None
        return sum(
            delta.tokens
            for delta in self.view.deltas("undecided", "cut")
            if delta.incarnation == self.incarnation[0]
        )

    def _note_stall(self, now: float) -> None:
        if self.trainer.idle_since is not None:
            self._phases["stall"] = now - self.trainer.idle_since
            self.trainer.idle_since = None

    def _on_trained(self, answer: dict[str, Any], now: float) -> None:
        epoch, block, lease = (int(part) for part in answer["tag"])
        state = self.trainer
        state.step, state.tokens = answer["step"], answer["tokens_total"]
        state.tokens_per_s, state.idle_since = answer["tokens_per_s"], now
        took = float(answer["seconds"])
        state.block_s = took if not state.block_s else 0.7 * state.block_s + 0.3 * took
        state.num_deaths = 0
        key = (epoch, block, lease)
        held = {_key(b): b for b in self._held()}
        if key not in self._claimed or key not in held:
            return  # reclaimed while it was being trained; a discard follows
        self._done.add(key)
        self._queue.append(
            BlockCompleted(
                epoch=epoch,
                block=block,
                lease=held[key].lease,
                loss=answer["loss"],
                seconds=took,
            )
        )

    def _held(self) -> list[Block]:
        return self.view.held(self.incarnation[0]) if self.incarnation else []

    def _on_version(self, answer: dict[str, Any], did: str, now: float) -> None:
        self.trainer.version = answer["version"]
        self._phases["apply"] = self._phases.get("apply", 0.0) + answer["seconds"]
        run = self.view.run()
        if answer["version"] < run.version or self._applied == run.version:
            return
        self._applied = answer["version"]
        stall_s = 0.0
        if self.trainer.idle_since is not None:
            stall_s = now - self.trainer.idle_since
        self._queue.append(
            VersionApplied(
                version=answer["version"],
                parameters_digest=answer["digest"],
                source="update" if did == "apply" else ("snapshot" if run.version else "initial"),
                seconds=self._phases,
                stall_s=stall_s,
            )
        )
        self._phases = {}

    def _on_error(self, did: str, error: str) -> None:
        if did == "publish":
            self._publication = None
            if self.incarnation is not None and not self._departing:
                self._depart("unfit", f"its delta cannot be published: {error}")
        elif self.incarnation is not None and not self._departing:
            self._depart("trainer", f"{did} failed: {error}")

    # -- blocks and deltas ------------------------------------------------------------------------

    def _claim(self, one: Incarnation, held: list[Block], now: float) -> None:
        """Say in the log that we start blocks, one ahead of the one in training (R7)."""
        run = self.view.run()
        if run.state != "running" or self.leaving or self.trainer.version != run.version:
            return
        in_work = sum(
            block.state != TRAINED and _key(block) in self._claimed - self._done for block in held
        )
        trained = any(block.state == TRAINED for block in held)
        for block in held:
            if block.state != LEASED or _key(block) in self._claimed:
                continue
            if in_work > CLAIMS_AHEAD:
                return
            if self._pressed(in_work + 1) and (trained or in_work):
                return
            self._claimed.add(_key(block))
            self._queue.append(
                BlockStarted(epoch=block.epoch, block=block.block, lease=block.lease)
            )
            in_work += 1

    def _pressed(self, num_blocks: int) -> bool:
        """Whether so many more blocks would not end before the deadline's margin (R12)."""
        round_, timing = self.view.round(), self.view.timing()
        if round_ is None:
            return False
        left = round_.deadline_ticks - (self.view.run().ticks - round_.opened_ticks)
        margin_s = min(timing.margin_s, round_.deadline_ticks * timing.tick_s / 4)
        return left * timing.tick_s < margin_s + num_blocks * self.trainer.block_s

    def _must_publish(self, one: Incarnation, held: list[Block]) -> bool:
        """At the quota (everything granted is trained), before the deadline's margin, or when
        leaving (R12). Only when the log agrees on what is completed."""
        trained = {_key(block) for block in held if block.state == TRAINED}
        if not trained or self._publication is not None or self._queue or self._appending:
            return False
        unfolded = self._done - trained
        if any(_key(block) in unfolded for block in held):
            return False
        if self.leaving is not None:
            return True
        if self.view.has_undecided(one.token[0]):
            return False
        round_ = self.view.round()
        if round_ is None or round_.state != "open":
            return False
        if all(block.state == TRAINED for block in held):
            return True
        in_work = any(block.state == TRAINING for block in held)
        return (not in_work and self.view.run().state != "running") or self._pressed(1)

    def _publish(self, held: list[Block]) -> list[Action]:
        assert self.trainer.version is not None
        self._num_published += 1
        self._publication = Publication(
            blocks=[block for block in held if block.state == TRAINED],
            base_version=self.trainer.version,
            name=f"delta-{self._num_published}",
            last=self.leaving is not None,
        )
        codec = self.view.config().outer.delta_codec
        return self._tell({"do": "publish", "path": self._publication.name, "codec": codec})

    def _on_published(self, answer: dict[str, Any]) -> None:
        self._phases["encode"] = answer["seconds"]
        if self._publication is None or self._publication.name != answer["path"]:
            return
        one = self._publication
        one.codec, one.norm, one.max_abs = answer["codec"], answer["norm"], answer["max_abs"]

    def _deliver(self) -> list[Action]:
        """Store the delta, then announce it: a blob is visible only through its event (R20)."""
        one = self._publication
        if one is None or not one.codec or one.announced:
            return []
        if one.blob is None:
            if self._storing:
                return []
            self._storing = True
            return [Store(one.name)]
        index = self.view.index()
        one.announced = True
        self._queue.append(
            DeltaPublished(
                base_version=one.base_version,
                blocks=tuple(
                    DeltaBlock(
                        epoch=block.epoch,
                        block=block.block,
                        lease=block.lease,
                        tokens=index.tokens(block.block),
                    )
                    for block in one.blocks
                ),
                blob=one.blob,
                num_bytes=one.num_bytes,
                codec=one.codec,
                norm=one.norm,
                max_abs=one.max_abs,
                last=one.last,
            )
        )
        return [Drop((one.name,))]

    # -- leaving, and staying in touch ------------------------------------------------------------

    def _consider_departing(self, held: list[Block]) -> None:
        """Once nothing is in training and nothing trained is undelivered, say good-bye."""
        if self.leaving is None or self.trainer.busy or self._publication is not None:
            return
        if self._queue or self._appending or any(block.state == TRAINED for block in held):
            return
        self._depart(self.leaving[0], self.leaving[1])

    def _depart(self, code: str, reason: str) -> None:
        self._departing = True
        self._queue.append(SiteDeparting.model_validate({"code": code, "reason": reason[:500]}))

    def _beat(self, now: float) -> None:
        """R9: speak when silent otherwise."""
        if self._queue or self._appending:
            return
        if now - self._last_append < self.view.timing().heartbeat_s(self.view.run().live):
            return
        self._queue.append(
            Heartbeat.model_validate(
                {
                    "phase": self._phase(),
                    "step": self.trainer.step,
                    "tokens": self.trainer.tokens,
                    "tokens_per_s": self.trainer.tokens_per_s,
                    "version": self.trainer.version,
                    "walltime_left_s": None
                    if self.walltime_end is None
                    else max(0.0, self.walltime_end - now),
                }
            )
        )

    def _phase(self) -> str:
        if self.trainer.version is None:
            return "starting"
        if self._publication is not None:
            return "publishing"
        return {"train": "training", "apply": "applying"}.get(self.trainer.busy, "waiting")

    def _flush(self) -> list[Action]:
        if not self._queue or self._appending:
            return []
        self._appending = True
        return [Append(tuple(self._queue))]


def _key(block: Block) -> tuple[int, int, int]:
    return (block.epoch, block.block, block.lease[0])
