"""Slurm as a `Scheduler`: one command at a time, each answer a value or a named trouble."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ops.placement.scheduler import Machine
from ops.placement.shapes import Shape
from ops.placement.slurm import commands
from ops.placement.slurm.commands import Said, Shell
from ops.placement.slurm.ends import Told, read_accounts, read_job, told_of
from ops.placement.slurm.nodes import (
    read_hides_jobs,
    read_nodes,
    read_partitions,
    read_reservations,
)
from ops.placement.slurm.probes import Estimate, complaint, read_probe, read_submit
from ops.placement.slurm.queues import Queued, read_queue
from ops.placement.slurm.troubles import Kind, Trouble, trouble

T = TypeVar("T")
_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)  # a definite answer: it is not there
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled|sacct.*not found", re.IGNORECASE)
_ENDED_ALREADY = re.compile(r"invalid job id|already completing|job/step already", re.IGNORECASE)


@dataclass(slots=True)
class Slurm:
    """The Slurm that `shell`'s commands reach. `calls` counts the commands run, for who watches
    what we cost a controller."""

    shell: Shell
    calls: int = 0
    _has_accounts: bool = True  # until sacct says that there are none
    _hides_jobs: bool | None = None  # not asked yet

    async def probe(self, script: Path) -> Estimate | Trouble:
        said = await self._run(commands.probe(script))
        return said if isinstance(said, Trouble) else read_probe(said.code or 0, said.out, said.err)

    async def submit(self, script: Path) -> str | Trouble:
        said = await self._run(commands.submit(script), keeps_zone=True)
        return (
            said if isinstance(said, Trouble) else read_submit(said.code or 0, said.out, said.err)
        )

    async def cancel(self, job_id: str) -> Trouble | None:
        said = await self._run(commands.cancel(job_id))
        if isinstance(said, Said) and _ENDED_ALREADY.search(said.err):
            return None
        return _done(said)

    async def reshape(self, job_id: str, shape: Shape) -> Trouble | None:
        return _done(await self._run(commands.reshape(job_id, shape)))

    async def queue(self) -> list[Queued] | Trouble:
        return await self._asked(commands.queue(), read_queue)

    async def machine(self) -> Machine | Trouble:
        nodes = await self._asked(commands.nodes(), lambda out: read_nodes(out) or None)
        if isinstance(nodes, Trouble):
            return nodes
        partitions = await self._asked(commands.partitions(), read_partitions)
        if isinstance(partitions, Trouble):
            return partitions
        reservations = await self._asked(commands.reservations(), read_reservations)
        if isinstance(reservations, Trouble):
            return reservations
        if self._hides_jobs is None:
            said = await self._asked(commands.configuration(), read_hides_jobs)
            self._hides_jobs = None if isinstance(said, Trouble) else said
        hides = bool(self._hides_jobs)
        return Machine(tuple(nodes), tuple(partitions), tuple(reservations), hides)

    async def told(self, job_ids: Sequence[str], since_s: int) -> dict[str, list[Told]] | Trouble:
        known: dict[str, list[Told]] = {}
        for job_id in job_ids:
            said = await self._run(commands.job(job_id))
            if isinstance(said, Trouble):
                return said
            if said.code and not _NO_SUCH_JOB.search(said.err):
                return trouble(complaint(said.err, said.out))
            known[job_id] = read_job(said.out)
        if missing := [job_id for job_id, found in known.items() if not found]:
            for one in await self._accounted(commands.accounts(missing, since_s)):
                known.setdefault(one.job_id, []).append(one)
        return known

    async def search(self, name: str, since_s: int) -> list[Told] | Trouble:
        queued = await self._asked(commands.search(name), read_queue)
        if isinstance(queued, Trouble):
            return queued
        found = [told_of(one) for one in queued]
        if not found:
            found = await self._accounted(commands.search_accounts(name, since_s))
        return [one for one in found if one.name == name]

    async def _accounted(self, command: list[str]) -> list[Told]:
        """What sacct knows; nothing where there is no accounting, or it does not answer now."""
        if not self._has_accounts:
            return []
        said = await self._run(command)
        text = said.text if isinstance(said, Trouble) else said.err
        if _NO_ACCOUNTING.search(text):
            self._has_accounts = False
        if isinstance(said, Trouble) or said.code:
            return []
        return read_accounts(said.out)

    async def _asked(self, command: list[str], read: Callable[[str], T | None]) -> T | Trouble:
        said = await self._run(command)
        if isinstance(said, Trouble):
            return said
        if said.code:
            return trouble(complaint(said.err, said.out))
        found = read(said.out)
        if found is None:
            what = said.err.strip() or "printed nothing that is understood"
            return Trouble(Kind.TRANSIENT, f"{command[0]}: {what}", silent=True)
        return found

    async def _run(self, command: list[str], *, keeps_zone: bool = False) -> Said | Trouble:
        self.calls += 1
        try:
            said = await self.shell.run(command, keeps_zone=keeps_zone)
        except OSError as error:
            return Trouble(Kind.OURS, f"{command[0]} cannot be run here: {error.strerror}")
        if said.code is None or said.code < 0:  # it took too long, or somebody ended it
            what = said.err if said.code is None else f"ended by signal {-said.code}"
            return Trouble(Kind.TRANSIENT, f"{command[0]}: {what}", silent=True)
        if said.code == 127:
            return Trouble(Kind.OURS, f"{command[0]} is not found here: {said.err.strip()}"[:500])
        return said


def _done(said: Said | Trouble) -> Trouble | None:
    if isinstance(said, Trouble):
        return said
    return trouble(complaint(said.err, said.out)) if said.code else None
