"""An agent's errands at the scheduler's counter: look, submit, probe, reshape, cancel.

Each is bounded by the caps before it is run and told to the log after it. A job is intended in the
log, acknowledged, before sbatch starts; an answer that never comes leaves the intent as it is, and
looks at the queue say later what became of it. Nothing here decides what is wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.events import (
    AgentReported,
    JobEnded,
    JobIntended,
    JobShape,
    JobSubmitted,
)
from leases.jobs import Job
from ops.placement import errands
from ops.placement.caps import Backoff, Ledger
from ops.placement.errands import Desk, Stray, Wish
from ops.placement.scheduler import Machine, Scheduler
from ops.placement.script import Ask, render
from ops.placement.shapes import Shape
from ops.placement.sites import Site, SitesInvalid
from ops.placement.slurm.queues import Queued
from ops.placement.slurm.troubles import Kind, Trouble
from ops.placement.snapshot import observed, probed

Write = Callable[..., Awaitable[bool]]  # events -> whether they hold
_LONG_AGO_S = 7 * 86_400  # how far back an accounting is searched for a name


@dataclass(slots=True)
class Clerk:
    """`write` appends to the log and returns once that is acknowledged and folded; `jobs` reads
    this agent's jobs from the fold; `folder`: where the sites file stands; `work`: scripts and
    logs of jobs; `user`: whose jobs are ours."""

    run: str
    site: Site
    scheduler: Scheduler
    ledger: Ledger
    write: Write
    jobs: Callable[[], list[Job]]
    folder: Path
    work: Path
    user: str
    clock: Callable[[], float]
    say: Callable[[str], None]
    backoff: Backoff  # of the controller
    pause: Backoff  # of submissions that were refused
    desk: Desk = field(default_factory=Desk)
    _reported: tuple[str, str] = ("", "")

    # -- looking ----------------------------------------------------------------------------------

    async def look(self, *, tells_queue: bool) -> bool:
        """One look at the queue, where the caps allow it; whether an answer came and was told."""
        now = self.clock()
        if self.backoff.wait_s(now) > 0 or self.ledger.take("polls", now) > 0:
            return False
        queued = await self.scheduler.queue()
        if isinstance(queued, Trouble):
            await self.failed(queued)
            return False
        machine = await self.scheduler.machine() if tells_queue else None
        if isinstance(machine, Trouble):
            await self.failed(machine)
            return False
        await self.worked()
        await self._compare(queued, machine)
        self.desk.looked_at = self.clock()
        return True

    async def _compare(self, queued: Sequence[Queued], machine: Machine | None) -> None:
        jobs = self.jobs()
        tale = errands.tell(jobs, [one for one in queued if one.user == self.user])
        events = list(tale.events)
        if machine is not None:
            ours = {job.job_id for job in jobs if job.state == "submitted" and job.job_id}
            now = int(self.clock())
            events.append(observed(self.site.partition, queued, machine, ours, now))
        if events:
            await self.write(*events)
        for stray in tale.strays:
            await self._remove(stray)
        await self._close([job for job in tale.missing if job.state == "submitted"])
        for job in tale.missing:
            if job.state == "intended":
                await self._settle(job)

    async def _remove(self, stray: Stray) -> None:
        self.say(f"cancelling {stray.name} ({stray.job_id}): {stray.why}")
        if (trouble := await self.scheduler.cancel(stray.job_id)) is not None:
            await self.failed(trouble)

    async def _close(self, missing: Sequence[Job]) -> None:
        """What became of jobs that the queue shows no more."""
        ids = [job.job_id for job in missing if job.job_id]
        if not ids:
            return
        since = min(job.intended_at or int(self.clock()) for job in missing) - 60
        told = await self.scheduler.told(ids, since)
        if isinstance(told, Trouble):
            await self.failed(told)
            return
        now = int(self.clock())
        for job in missing:
            end = errands.ending(job, told.get(job.job_id or "", ()), now)
            if end is not None:
                self.say(f"job {job.name} ended: {end.outcome} {end.message}".rstrip())
                await self.write(end)

    async def _settle(self, job: Job) -> None:
        """An intent that no look has shown: never submitted, once that is sure."""
        now, doubt = self.clock(), self.desk.doubts.get(job.name)
        if doubt is None:
            return
        doubt.looked()
        if not doubt.is_settled(now, self.site.etiquette.settle):
            return
        found = await self.scheduler.search(job.name, int(now) - _LONG_AGO_S)
        if isinstance(found, Trouble):
            await self.failed(found)
        elif found:
            await self.write(JobSubmitted(job_name=job.name, job_id=found[-1].job_id))
        else:
            what = "the queue never showed it"
            self.say(f"job {job.name} was never submitted: {what}")
            await self.write(JobEnded(job_name=job.name, outcome="never_submitted", message=what))

    # -- acting -----------------------------------------------------------------------------------

    async def submit(self, wish: Wish) -> bool:
        """Carry out a wish for a job, where the caps allow it now; whether it is done with."""
        now = self.clock()
        if any(job.name == wish.job for job in self.jobs()):
            return True  # a name is used once, whatever became of it
        if why := self._not_asked_for(wish):
            await self.report("troubled", why, Kind.OURS)
            return True
        if max(self.backoff.wait_s(now), self.pause.wait_s(now)) > 0:
            return False
        if errands.num_waiting(self.jobs()) >= self.site.etiquette.max_queued:
            return False
        assert wish.shape is not None
        begin_in_s = int((wish.not_before_s or now) - now)
        ask = Ask(self.run, wish.job, wish.shape, wish.after is not None, begin_in_s, wish.chain)
        try:
            script = self._script(ask)
        except (SitesInvalid, OSError) as error:
            await self.report("troubled", f"no script: {error}", Kind.OURS)
            return False
        if self.ledger.take("submissions", now) > 0:
            return False
        if not await self.write(self._intent(wish, wish.shape)):
            return True
        await self._answer(wish.job, await self.scheduler.submit(script))
        return True

    async def _answer(self, name: str, said: str | Trouble) -> None:
        """The fate of a submission: an id, a refusal, or silence, which leaves it open."""
        if isinstance(said, str):
            self.pause.worked()
            await self.worked()
            self.say(f"submitted {name} as job {said}")
            await self.write(JobSubmitted(job_name=name, job_id=said))
            return
        self.pause.failed(self.clock())
        if said.silent:
            self.desk.doubts[name] = errands.Doubt(self.clock())
            await self.failed(said)
            return
        await self.write(
            JobEnded(job_name=name, outcome="never_submitted", message=said.text[:1000])
        )
        await self.report("troubled", said.text, said.kind)

    def _not_asked_for(self, wish: Wish) -> str:
        """Why a wish is none that this site's own file allows: planner and agent may have read
        different ones."""
        profile = self.site.profile()
        if wish.shape is None or not wish.job:
            return f"a plan asks for a job without name or shape: {wish.reason}"
        most = max(shape.node_hours for shape in profile.shapes)
        if wish.shape.node_hours > most:
            return f"a plan asks for {wish.shape}, more than any shape of {self.site.name} here"
        return ""

    def _intent(self, wish: Wish, shape: Shape) -> JobIntended:
        return JobIntended(
            job_name=wish.job,
            shape=self.job_shape(shape),
            reason=wish.reason or "the plan asks for it",
            at_epoch_s=int(self.clock()),
            after=wish.after,
            chain=wish.chain,
            index=wish.index,
            not_before_epoch_s=wish.not_before_s,
            expected_start_epoch_s=wish.expected_s,
        )

    async def probe(self, shape: Shape) -> bool:
        """Ask when a job of this shape would start, where the caps allow it; whether it did."""
        now = self.clock()
        if self.backoff.wait_s(now) > 0:
            return False
        try:
            script = self._script(Ask(self.run, "atoll-probe", shape))
        except (SitesInvalid, OSError) as error:
            await self.report("troubled", f"no script: {error}", Kind.OURS)
            return False
        if self.ledger.take("probes", now) > 0:
            return False
        said = await self.scheduler.probe(script)
        await self.write(probed(self.job_shape(shape), said, int(now)))
        if isinstance(said, Trouble) and said.silent:
            await self.failed(said)
        elif isinstance(said, Trouble) and said.kind is Kind.OURS:
            await self.report("troubled", said.text, said.kind)
        return True

    async def reshape(self, job: Job, shape: Shape) -> None:
        """Change what a waiting job asks for; the next look says what came of it."""
        if job.job_id and job.phase == "pending":
            if (trouble := await self.scheduler.reshape(job.job_id, shape)) is not None:
                await self.failed(trouble)
            else:
                self.say(f"job {job.name} now asks for {shape}")

    async def cancel(self, job: Job, why: str) -> None:
        """End a job; the next look says that it has gone."""
        if job.job_id:
            self.say(f"cancelling {job.name} ({job.job_id}): {why}")
            if (trouble := await self.scheduler.cancel(job.job_id)) is not None:
                await self.failed(trouble)

    # -- telling ----------------------------------------------------------------------------------

    async def failed(self, trouble: Trouble) -> None:
        """An error: leave the controller alone for a while, and say so once."""
        now = self.clock()
        if trouble.silent or trouble.kind is Kind.TRANSIENT:
            self.backoff.failed(now)
        if trouble.silent:
            self.desk.silence(now)
        await self.report("troubled", trouble.text, trouble.kind)

    async def worked(self) -> None:
        """It answers."""
        self.backoff.worked()
        if self._reported[0] == "troubled":
            await self.report("working", "the scheduler answers")

    async def goes_on(self) -> None:
        """Nobody halts it any more."""
        if self._reported[0] == "halted":
            await self.report("working", f"serves {self.site.name} again")

    async def report(self, state: str, message: str, kind: Kind | None = None) -> None:
        """Tell the log what this agent is about, where that is news."""
        if (state, message) == self._reported:
            return
        self._reported = (state, message)
        self.say(message)
        fields = {"state": state, "message": message[:4000], "trouble": kind and str(kind)}
        await self.write(AgentReported.model_validate(fields))

    def job_shape(self, shape: Shape) -> JobShape:
        """A shape as events carry it."""
        return JobShape(
            nodes=shape.nodes,
            walltime_s=shape.walltime_s,
            partition=self.site.partition,
            account=self.site.account,
        )

    def _script(self, ask: Ask) -> Path:
        """The rendered script, where it stays to be looked at, by its user: it may hold the way
        to the broker."""
        text = render(self.site, ask, self.folder, self.work)
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / f"{ask.job_name}.sh"
        path.touch(mode=0o600)
        path.write_text(text)
        return path
