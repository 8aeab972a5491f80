"""The agent of one site, on its login node: dials out, needs no root, acts only by the plan.

It folds what concerns it, looks at the queue at its own pace while jobs of ours are in it or a
decision is open, carries the plan in force out, and tells the log what came of it. A controller or
broker that is away costs time, no job: what is in the queue stays, what was intended is looked for.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.chain import Record
from eventlog.errors import Conflict, LockHeld, LogUnavailable
from eventlog.events import AGENT, COORDINATOR, OPERATOR, PLANNER, Event
from eventlog.feed import Feed
from eventlog.log import EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases import jobs as told
from leases.jobs import Job
from leases.view import View
from ops.placement import errands, halt
from ops.placement.clerk import Clerk
from ops.placement.errands import OPEN, Wish

SCOPE = "-"  # the fold of one that is no site: decisions about sites are taken as judged (R16)
_TURN_S = 1.0
_RETRY_S = 1.0
_GRACE_S = 180.0  # for jobs to end by themselves when the run has
_AGAIN_S = 300.0  # between two cancellations of one job
_TWIN = "another agent of {} has begun elsewhere: this one ends; one agent a site"
_OLDEST = 4.0  # times `replan`: an older plan is one whose planner is gone


class AgentTwin(LockHeld):
    """Another process speaks as this site's agent."""


@dataclass(slots=True)
class Agent:
    """`make_clerk` is given `write` and `jobs`. `replan_s`: how often a planner that lives says
    something at least. `rng`: a jitter, so that of two agents that share caps none starves."""

    log: EventLog
    projection: Projection
    site: str
    make_clerk: Callable[..., Clerk]
    home: Path
    replan_s: float
    stop_file: str = ""
    is_dry: bool = False
    clock: Callable[[], float] = time.time
    rng: random.Random = field(default_factory=random.Random)
    say: Callable[[str], None] = lambda _: None
    _clerk: Clerk = field(init=False)
    _view: View = field(init=False)
    _writer: Writer = field(init=False)
    _feed: Feed = field(init=False)
    _voids: dict[str, str] = field(default_factory=dict)  # of our own events, by id
    _cancelled: dict[str, float] = field(default_factory=dict)
    _ended_at: float | None = None  # when the run was seen to have ended
    _serves: bool = False  # from here on all that is written as this agent is ours
    _said: set[str] = field(default_factory=set)

    async def run(self) -> str:
        """Serve until the run has ended and nothing of ours is in the queue; why it went.

        Raises AgentTwin, LogDamaged (R19)."""
        subject = f"{AGENT}.{self.site}"
        self._view = View(self.projection.db)
        self._writer = Writer(self.log, subject)
        self._clerk = self.make_clerk(write=self._write, jobs=self._jobs)
        await self.projection.check(self.log)
        subjects = [COORDINATOR, OPERATOR, PLANNER, subject]
        while records := await self.log.read(self.projection.position.sequence, subjects=subjects):
            self._fold(records)
        async with Feed(self.log, self.projection.position.sequence, subjects) as self._feed:
            self._serves = True
            await self._clerk.report("working", f"serves {self.site}")
            while not self._is_done():
                await self._turn()
                self._fold(await self._feed.next(_TURN_S * self.rng.uniform(0.5, 1.5)))
            await self._clerk.report("halted", "the run has ended, and so have its jobs here")
        return "the run has ended"

    def _is_done(self) -> bool:
        return self._view.run().state == "finished" and not self._open()

    async def _turn(self) -> None:
        """What is due now. Everything runs one after the other: a centre sees one user, typing."""
        now, jobs = self.clock(), self._open()
        stopped = halt.halted(self.home, self.stop_file)
        if stopped is not None and not (stopped.cancel and jobs):
            await self._clerk.report("halted", f"halted: {stopped.reason}")
            return
        self._clerk.desk.doubt(jobs, now)
        wishes = [] if stopped else self._wishes(now)
        if self.is_dry:
            self._tell_dry(wishes)
            return
        if stopped is not None or self._run_is_over():
            await self._wind_up(now, stopped.reason if stopped else "")
            wishes = []
        else:
            await self._clerk.goes_on()
        open_decision = any(wish.do in ("observe", "probe", "submit") for wish in wishes)
        if jobs or open_decision:
            await self._clerk.look(tells_queue=open_decision)
        for wish in wishes:
            if wish.key not in self._clerk.desk.done and await self._carry_out(wish):
                self._clerk.desk.done.add(wish.key)

    async def _carry_out(self, wish: Wish) -> bool:
        """One action of the plan; whether it is done with."""
        if wish.do == "submit":
            return await self._clerk.submit(wish)
        if wish.do == "probe":
            for shape in wish.shapes:
                if not self._is_probed(wish, shape) and not await self._clerk.probe(shape):
                    return False
            return True
        job = next((job for job in self._open() if job.name == wish.job), None)
        if job is not None and wish.do == "cancel":
            await self._clerk.cancel(job, wish.reason)
        if job is not None and wish.do == "reshape" and wish.shape is not None:
            await self._clerk.reshape(job, wish.shape)
        return True

    async def _wind_up(self, now: float, halted: str) -> None:
        """The run is over, or everything is to go: successors that wait are cancelled at once,
        jobs that run when they have had time to end by themselves."""
        self._ended_at = self._ended_at or now
        for job in self._open():
            leaves = job.phase == "running" and not halted and now - self._ended_at < _GRACE_S
            if leaves or now - self._cancelled.get(job.name, 0.0) < _AGAIN_S:
                continue
            if job.job_id:
                self._cancelled[job.name] = now
                await self._clerk.cancel(job, halted or "the run is over")

    def _run_is_over(self) -> bool:
        return self._view.run().state in ("stopping", "finished")

    def _wishes(self, now: float) -> list[Wish]:
        plan = told.plan(self.projection.db)
        return errands.wishes(plan, self.site, now, _OLDEST * self.replan_s)

    def _is_probed(self, wish: Wish, shape: object) -> bool:
        """Whether the shape was asked about since the plan that wants it."""
        asked = {
            (one.said["shape"]["nodes"], one.said["shape"]["walltime_s"])
            for one in told.looks(self.projection.db, "probe", self.site)
            if one.token[0] > wish.plan[0]
        }
        return (getattr(shape, "nodes", 0), getattr(shape, "walltime_s", 0)) in asked

    def _jobs(self) -> list[Job]:
        return told.jobs(self.projection.db, self.site)

    def _open(self) -> list[Job]:
        return [job for job in self._jobs() if job.state in OPEN]

    def _tell_dry(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            shape = f" {wish.shape}" if wish.shape else ""
            line = f"would {wish.do}{shape} {wish.job}: {wish.reason}".replace(" :", ":")
            if line not in self._said:
                self._said.add(line)
                self.say(line)

    # -- the log ----------------------------------------------------------------------------------

    async def _write(self, *events: Event) -> bool:
        """Append and fold through it; whether all hold. Waits for a broker that is away: nothing
        is asked of the scheduler that the log does not know. Raises AgentTwin."""
        if self.is_dry:
            return False
        try:
            sequence = await self._appended(events)
        except Conflict as error:
            raise AgentTwin(_TWIN.format(self.site)) from error
        ids = list(self._writer.ids)
        while self.projection.position.sequence < sequence:
            self._fold(await self._feed.next(_RETRY_S))
        voids = [self._voids.pop(one, "") for one in ids]
        for void in filter(None, voids):
            self.say(f"without effect: {void}")
        return not any(voids)

    async def _appended(self, events: Sequence[Event]) -> int:
        self._writer.set(*self._view.pen(self._writer.subject))
        try:
            return await self._writer.append(events, Stamp())
        except LogUnavailable as error:
            self.say(f"{error}; nothing is asked of the scheduler until it answers")
        while True:
            await asyncio.sleep(_RETRY_S)
            try:
                return await self._writer.retry()
            except LogUnavailable:
                continue

    def _fold(self, records: Sequence[Record]) -> None:
        for entry, voids in self.projection.apply(records):
            if not self._serves or entry.record.subject != self._writer.subject:
                continue
            name = entry.envelope.id if entry.envelope else ""
            if name not in self._writer.ids:
                raise AgentTwin(_TWIN.format(self.site))
            self._voids[name] = voids[0]
