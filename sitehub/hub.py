"""The hub: the one process of a site that talks to the broker, dialling out.

A thin shell: it folds what it reads, asks `HubLogic` what to do, does it, and reports back. Bulk
transfers and appends run beside each other; none blocks the fold or the trainer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventlog.blobs import BlobStore
from eventlog.chain import Record
from eventlog.errors import BlobDamaged, BlobMissing, BlobUnavailable, Conflict, LogUnavailable
from eventlog.events import COORDINATOR, OPERATOR, Event, SiteJoined, Token
from eventlog.feed import Feed
from eventlog.log import EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.sizes import most_bytes
from leases.table import LeaseTable
from leases.view import View
from sitehub.actions import (
    Action,
    Append,
    Drop,
    EndTrainer,
    Fetch,
    Leave,
    StartTrainer,
    Store,
    Tell,
    news,
    of_an_answer,
)
from sitehub.handover import Handover
from sitehub.leftovers import locked, record, recorded, sweep
from sitehub.logic import HubLogic
from sitehub.saved import Saving, resume_of
from sitehub.slow import too_slow
from sitehub.state import HubState
from sitehub.wire import Message

_RETRY_S = 1.0
_TURN_S = 0.5  # the longest wait between two looks at our own clock


@dataclass(slots=True)
class Hub:
    """One site's hub. `folder`: node-local, the site's own; `say`: one line for a person;
    `max_rate`: the cap that `blobs` keep to, bytes per second; `saving`: its checkpoints."""

    log: EventLog
    blobs: BlobStore
    site: str
    folder: Path
    data: Path
    num_threads: int = 1
    walltime_end: float | None = None
    successor: bool = False
    max_rate: float | None = None
    saving: Saving | None = None
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    pen: Callable[..., Writer] = Writer  # a simulator's has ids and a clock of its own
    trainers: Callable[..., Handover] = Handover  # and its trainers are no processes
    logic: HubLogic = field(init=False)
    _projection: Projection = field(init=False)
    _writer: Writer = field(init=False)
    _handover: Handover = field(init=False)
    _feed: Feed = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _subject: str = ""
    _said: tuple[Token | None, int | None] = (None, None)
    _here: Token | None = None  # the site's last incarnation on this machine

    async def run(self) -> int:
        """Take part in the run until it ends or this site leaves; the process's exit code.

        Raises LockHeld before anything is written where another process is this site on this
        machine (R11), LogDamaged (R19).
        """
        lock = locked(self.folder, self.site)
        try:
            return await self._run()
        finally:
            lock.release()

    async def _run(self) -> int:
        self._subject = f"site.{self.site}"
        table = LeaseTable(scope=self.site)
        path = self.folder / "projection.sqlite"
        with Projection(path, [table], self.log.run, contiguous=False) as self._projection:
            await self._projection.check(self.log)
            self._writer = self.pen(self.log, self._subject)
            self._here = recorded(self.folder)
            self.logic = HubLogic(
                HubState(
                    self.site,
                    View(self._projection.db),
                    walltime_end=self.walltime_end,
                    predecessor=self._here,
                    successor=self.successor,
                    saving=self.saving,
                )
            )
            self._handover = self.trainers(
                self.folder / "work", self.data, self.num_threads, self._hear, self._gone
            )
            try:
                return await self._take_part()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._handover.close()

    async def _take_part(self) -> int:
        subjects = [COORDINATOR, OPERATOR, self._subject]
        position = self._projection.position.sequence
        while records := await self.log.read(position, subjects=subjects):
            self._fold(records)
            position = self._projection.position.sequence
        folder, view = self._handover.folder, self.logic.hub.view
        sweep(folder, view)
        if self.max_rate is not None and (told := too_slow(view, folder, self.max_rate)):
            self.say(told)
        async with Feed(self.log, position, subjects) as self._feed:
            while True:
                before = self.logic.hub.incarnation
                for action in self.logic.actions(self.clock()):
                    if isinstance(action, Leave):
                        self.say(action.reason)
                        return action.code
                    self._do(action)
                incarnation = self.logic.hub.incarnation
                if incarnation is not None and incarnation != before:
                    self._admitted(incarnation)
                self._record()
                if records := await self._feed.next(_TURN_S):
                    self._fold(records)
                self._reap()

    def ask_to_leave(self, code: str, reason: str, exit_code: int) -> None:
        """From a signal handler: deliver what is trained and depart (P7)."""
        self.say(f"leaving: {reason}")
        self.logic.ask_to_leave(code, reason, exit_code)
        self._feed.notify()

    def _fold(self, records: list[Record]) -> None:
        for entry, voids in self._projection.apply(records):
            self.logic.on_entry(entry, voids[0])

    # -- carrying out -----------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case StartTrainer():
                self._start(self._start_trainer())
            case EndTrainer(reason):
                self.say(reason)
                self._handover.kill()
            case Tell(command):
                self._start(self._handover.tell(command))
            case Append(events):
                self._start(self._append(events))
            case Fetch(blob):
                self._start(self._fetch(blob))
            case Store(name):
                self._start(self._store(name))
            case Drop(names):
                for name in names:
                    (self._handover.folder / name).unlink(missing_ok=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._feed.notify())

    def _reap(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _start_trainer(self) -> None:
        view = self.logic.hub.view
        self.say("starting the trainer")
        await self._handover.start(view.config(), view.index().shape)

    async def _append(self, events: tuple[Event, ...]) -> None:
        """R6: append with the expected last sequence; whose append fails reads on."""
        view = self.logic.hub.view
        pen = view.pen(self._subject)
        if pen[2] >= self._writer.last:
            self._writer.set(*pen)
        decision = view.run().decision
        joins = isinstance(events[0], SiteJoined)
        stamp = Stamp(
            incarnation=None if joins else self.logic.hub.incarnation,
            seen=decision if decision[0] else None,
        )
        attempt = self._writer.append(events, stamp)
        while True:
            try:
                sequence = await attempt
                for line in filter(None, map(news, events)):
                    self.say(line)
                return self.logic.on_appended(len(events), sequence, self.clock())
            except LogUnavailable as error:
                self.say(_again(error))
                await asyncio.sleep(_RETRY_S)
                attempt = self._writer.retry()
            except Conflict as conflict:
                while self._projection.position.sequence < conflict.actual:
                    await asyncio.sleep(0.05)
                self._writer.last = 0  # the fold knows better
                return self.logic.on_overtaken()

    async def _fetch(self, blob: str) -> None:
        target = self._handover.folder / blob
        target.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                if not target.exists():
                    most = most_bytes(self.logic.hub.view.db, blob)
                    told = self.logic.hub.transfers.begin("down", blob, self.clock)
                    await self.blobs.get(blob, target, told, max_bytes=most)
                return self.logic.on_fetched(blob, self.clock())
            except BlobUnavailable as error:
                self.say(_again(error))
                await asyncio.sleep(_RETRY_S)
            except (BlobMissing, BlobDamaged) as error:
                self.say(f"{error}; it waits for a snapshot, or for the blob to come back")
                return self.logic.on_missing(blob, self.clock())

    async def _store(self, name: str) -> None:
        began = self.clock()
        while True:
            try:
                told = self.logic.hub.transfers.begin("up", name, self.clock)
                blob = await self.blobs.put(self._handover.folder / name, told)
                took = self.clock() - began
                return self.logic.on_stored(name, blob.digest, blob.num_bytes, took)
            except BlobUnavailable as error:
                self.say(_again(error))
                await asyncio.sleep(_RETRY_S)

    # -- the trainer ------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        said = message.get("say")
        if said == "ready":
            self.logic.on_ready(message)
        elif said == "progress":
            return self.logic.on_progress(message)
        elif said == "cut":
            self.logic.on_cut()
        elif said == "saving":
            self.logic.on_saving()
        elif said is not None:
            self.say(f"the trainer has {said}: {message['error']}")
        elif "did" in message:
            if told := of_an_answer(message):
                self.say(told)
            self.logic.on_answer(message, self.clock())
        self._feed.notify()

    def _gone(self, reason: str) -> None:
        self.say(reason)
        self.logic.on_trainer_gone(reason)
        self._feed.notify()

    # -- what stays on this machine ---------------------------------------------------------------

    def _record(self) -> None:
        who = (self.logic.hub.incarnation, self._handover.pid)
        if who != self._said and who[0] is not None:
            record(self.folder, who[0], who[1])
            self._said = who

    def _admitted(self, incarnation: Token) -> None:
        """What the trainer takes up of its site's last life, if it has just begun."""
        hub = self.logic.hub
        folder = self.saving.folder if self.saving is not None else None
        found = resume_of(hub.view, self.site, folder, self._here)
        hub.resume, self._here = found if found.is_needed else None, incarnation
        self.say(f"admitted at event #{incarnation[0]}: it takes part")


def _again(error: Exception) -> str:
    """Errors of the broker end in an advice that is taken already."""
    return f"{str(error).removesuffix('; try again')}; trying again"
