"""How own jobs ended: `scontrol show job` while the controller remembers, sacct after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ops.placement.slurm.nodes import records, value
from ops.placement.slurm.queues import Phase, Queued, phase_of
from ops.placement.slurm.values import count, duration_s, instant, whole

Outcome = Literal["completed", "walltime", "cancelled", "failed", "unknown"]
SACCT_FIELDS = "JobIDRaw,State,Submit,Start,End,ExitCode,NNodes,Timelimit,JobName"
_OUTCOMES: dict[str, Outcome] = {
    "COMPLETED": "completed",
    "CD": "completed",
    "TIMEOUT": "walltime",  # a normal end: the job had all the time it asked for
    "TO": "walltime",
    "DEADLINE": "walltime",
    "DL": "walltime",
    "CANCELLED": "cancelled",
    "CA": "cancelled",
    "REVOKED": "cancelled",
    "RV": "cancelled",
    "PREEMPTED": "cancelled",
    "PR": "cancelled",
}
_FAILED = [
    "FAILED",
    "F",
    "NODE_FAIL",
    "NF",
    "BOOT_FAIL",
    "BF",
    "OUT_OF_MEMORY",
    "OOM",
    "LAUNCH_FAILED",
    "LF",
]
REQUEUE = 75  # of `atoll site run`: it left in good order, and may be started again


@dataclass(frozen=True, slots=True)
class Told:
    """One job as it is told. exit_code: of the script, None where unknown or ended by a signal."""

    job_id: str
    name: str
    state: str
    phase: Phase
    reason: str
    nodes: int | None
    limit_s: int | None
    submitted_s: int | None
    start_s: int | None
    end_s: int | None
    exit_code: int | None

    @property
    def outcome(self) -> Outcome:
        """What became of it. A job that left by itself, to be started again, did not fail."""
        word = self.state.upper().split()[0].rstrip("+") if self.state.split() else ""
        if word in ("FAILED", "F") and self.exit_code == REQUEUE:
            return "completed"
        return "failed" if word in _FAILED else _OUTCOMES.get(word, "unknown")


def read_job(out: str) -> list[Told]:
    """`scontrol show job -o`, of one job or all; arrays and heterogeneous jobs give several."""
    return [_told(fields) for fields in records(out, "JobId") if fields["JobId"][:1].isdigit()]


def read_accounts(out: str) -> list[Told]:
    """`sacct -n -P -X -o SACCT_FIELDS`; foreign lines are ignored. A requeued job has a line each
    time it ran (-D): the last one counts, for whoever asks."""
    found = []
    for line in out.splitlines():
        fields = line.strip().split("|", 8)
        if len(fields) == 9 and fields[0].isdigit():
            job_id, state, submit, start, end, code, nodes, limit, name = fields
            found.append(
                Told(
                    job_id,
                    name,
                    state,
                    phase_of(state),
                    "",
                    count(nodes),
                    duration_s(limit),
                    instant(submit),
                    instant(start),
                    instant(end),
                    exit_code(code),
                )
            )
    return found


def told_of(one: Queued) -> Told:
    """A line of squeue as what is told of a job; it knows no exit code."""
    return Told(
        one.job_id,
        one.name,
        one.state,
        one.phase,
        one.reason,
        one.nodes,
        one.limit_s,
        one.submitted_s,
        one.start_s,
        one.end_s,
        None,
    )


def exit_code(text: str) -> int | None:
    """The code of `CODE:SIGNAL`; None where a signal ended it, or nothing is known."""
    code, _, signal = text.strip().partition(":")
    return None if whole(signal) else whole(code)


def _told(fields: dict[str, str]) -> Told:
    state = fields.get("JobState", "")
    return Told(
        fields["JobId"].split()[0],
        fields.get("JobName", fields.get("Name", "")),  # `Name` up to 15.08
        state,
        phase_of(state),
        value(fields, "Reason"),
        count(fields.get("NumNodes", "")),
        duration_s(fields.get("TimeLimit", "")),
        instant(fields.get("SubmitTime", "")),
        instant(fields.get("StartTime", "")),
        instant(fields.get("EndTime", "")),
        exit_code(fields.get("ExitCode", "")),
    )
