"""The command lines of the agent, and how they run: cleaned, bounded, through a login shell or not.

A user's own SQUEUE_FORMAT, SBATCH_*, SLURM_* would change what is printed and asked, so none of
them is passed on; SLURM_CONF says which cluster is meant, and stays. The bound on a command is
longer than the controller's own (18 to 20 s were seen of sbatch, 10 of squeue; MessageTimeout may
be 100): who gives up earlier kills an answer in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.deathsig import arm, death_signal
from ops.placement.shapes import Shape
from ops.placement.slurm.ends import SACCT_FIELDS
from ops.placement.slurm.nodes import SINFO_FORMAT
from ops.placement.slurm.queues import MARK, SQUEUE_FORMAT
from ops.placement.slurm.values import as_limit, as_utc

MIN_TIMEOUT_S = 30.0
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SALLOC_",
            "SRUN_", "SCANCEL_", "SPRIO_")  # fmt: skip
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER"}
_MAX_OUTPUT_BYTES = 64 << 20

# A login shell may print a banner, and may not pass arguments on: it gets them as positions.
LOGIN_SHELL = ("bash", "-lc", 'exec "$@"', "atoll")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said. code: None where it was ended, for it took too long."""

    code: int | None
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Shell:
    """How commands run here. prefix: what stands before each, as `LOGIN_SHELL`."""

    prefix: tuple[str, ...] = ()
    timeout_s: float = 120.0
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    async def run(self, command: Sequence[str], *, keeps_zone: bool = False) -> Said:
        """Run a command to its end. keeps_zone: it passes its environment on to a job, which shall
        have the user's time zone and formats. Raises OSError where there is no such program."""
        process = await self._started(command, keeps_zone)
        try:
            async with asyncio.timeout(max(self.timeout_s, MIN_TIMEOUT_S)):
                out, err = await process.communicate()
        except TimeoutError:
            await _end(process)
            return Said(None, "", f"no answer within {self.timeout_s:g} s; socket timed out")
        except asyncio.CancelledError:
            await _end(process)
            raise
        return Said(process.returncode, _text(out), _text(err))

    async def _started(
        self, command: Sequence[str], keeps_zone: bool
    ) -> asyncio.subprocess.Process:
        """A child that is always known: whoever is cancelled while it is made ends it, and all that
        it has started (asyncio would end only itself, and wait for whoever holds its output)."""
        making = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self.prefix,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=cleaned(self.environment, keeps_zone=keeps_zone),
                start_new_session=True,  # Ctrl-C is for the agent, which lets an sbatch finish
                preexec_fn=_with_us(),
                limit=_MAX_OUTPUT_BYTES,
            )
        )
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await _end(await making)
            raise


def cleaned(environment: Mapping[str, str], *, keeps_zone: bool = False) -> dict[str, str]:
    """The environment that scheduler commands run in: nothing of a user's that changes answers,
    instants in epoch seconds, messages in English."""
    kept = {
        key: value
        for key, value in environment.items()
        if key in _KEPT or not key.startswith(_FOREIGN)
    }
    if keeps_zone:
        return kept
    kept.pop("LANGUAGE", None)
    return kept | {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def probe(script: Path) -> list[str]:
    """One partition a call: with several, Slurm answers for the first that fits."""
    return ["sbatch", "--test-only", str(script)]


def submit(script: Path) -> list[str]:
    return ["sbatch", "--parsable", str(script)]


def cancel(job_id: str) -> list[str]:
    return ["scancel", job_id]


def reshape(job_id: str, shape: Shape) -> list[str]:
    limit = as_limit(shape.walltime_s)
    return [
        "scontrol",
        "update",
        f"JobId={job_id}",
        f"NumNodes={shape.nodes}",
        f"TimeLimit={limit}",
    ]


def queue() -> list[str]:
    """All users, one line a job, array tasks together; with a header, which proves an answer."""
    return ["squeue", "-o", MARK + SQUEUE_FORMAT]


def nodes() -> list[str]:
    return ["sinfo", "-h", "-o", MARK + SINFO_FORMAT]


def partitions() -> list[str]:
    return ["scontrol", "show", "partition", "-o"]


def reservations() -> list[str]:
    return ["scontrol", "show", "reservation", "-o"]


def configuration() -> list[str]:
    return ["scontrol", "show", "config"]


def job(job_id: str) -> list[str]:
    return ["scontrol", "show", "job", "-o", job_id]


def accounts(job_ids: Sequence[str], since_s: int) -> list[str]:
    """With -S always: the default window begins at midnight. -D: every life of a reused id."""
    ids = ",".join(job_ids)
    return ["sacct", "-n", "-P", "-X", "-D", "-S", as_utc(since_s), "-j", ids, "-o", SACCT_FIELDS]


def search(name: str) -> list[str]:
    """Jobs of that name in all states: ended ones stay for MinJobAge, 300 s by default."""
    return ["squeue", "-t", "all", "-n", name, "-o", MARK + SQUEUE_FORMAT]


def search_accounts(name: str, since_s: int) -> list[str]:
    """The same of the accounting, where there is one."""
    since = as_utc(since_s)
    return ["sacct", "-n", "-P", "-X", "-S", since, "--name", name, "-o", SACCT_FIELDS]


def _with_us() -> Callable[[], None] | None:
    """What a child does before it becomes the command: it is to end when the agent does, so that
    no sbatch still submits while the next agent looks whether this one did."""
    prctl, parent = death_signal(), os.getpid()
    return (lambda: arm(prctl, parent)) if prctl else None


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
