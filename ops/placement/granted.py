"""How much time a job was granted, asked from within it: not what it had asked for.

A job whose limit was changed while it waited has another one than its script says. Slurm 23.02 and
later say when it ends in the environment; before that squeue does. A controller that does not
answer just then costs no job: what was asked for is taken, from its start on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from eventlog.errors import AtollError
from ops.placement.slurm.commands import cleaned
from ops.placement.slurm.queues import MARK, marked
from ops.placement.slurm.values import instant

ASKED = "ATOLL_JOB_WALLTIME_S"  # what the script asked for, set by its template
_ASK_S = 120.0  # longer than a controller's own bound


class NoJob(AtollError):
    """This is no job of a batch system, or its end cannot be learnt; the text says which."""


Ask = Callable[[Sequence[str], Mapping[str, str]], str]


def left_s(environment: Mapping[str, str], now: float, ask: Ask | None = None) -> float:
    """Seconds until this job's time limit; may be negative. `now`: epoch seconds. `ask` runs a
    command and returns what it printed. Raises NoJob."""
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        raise NoJob("--walltime job: this is no Slurm job (no SLURM_JOB_ID); give a time instead")
    end = instant(environment.get("SLURM_JOB_END_TIME", ""))
    if end is None:
        said = (ask or _run)(["squeue", "-h", "-j", job_id, "-o", f"{MARK}%i|%e"], environment)
        ends = [instant(fields[1]) for fields in marked(said, 2)]
        end = ends[-1] if ends else None
    if end is None and environment.get(ASKED, "").isdigit():
        began = instant(environment.get("SLURM_JOB_START_TIME", "")) or int(now)
        end = began + int(environment[ASKED])
    if end is None:
        raise NoJob(
            f"--walltime job: Slurm does not say when job {job_id} ends; give a time instead, or "
            "no --walltime where the job has no limit"
        )
    return end - now


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=cleaned(environment), capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
