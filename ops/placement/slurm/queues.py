"""One squeue, read: every job of a partition set, ours by name, for the rest only what they hold.

Each line is written by a format of ours and begins with a mark, so banners of login shells and
notices of a centre are told from answers. squeue prints its header once it has an answer: without
one there is none, so "no jobs" is told from "no answer".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ops.placement.slurm.values import count, duration_s, instant, whole

MARK = "atoll|"
# id, state, nodes, limit, submitted, start, end, priority, partition, user, name, reason: what may
# hold anything comes last. %V exists since 14.11, the others for longer.
SQUEUE_FORMAT = "%i|%t|%D|%l|%V|%S|%e|%Q|%P|%u|%j|%r"
_NUM_FIXED = 10


class Phase(StrEnum):
    """Where a job of a queue is. ending: it holds nodes, but not for long; gone: it has ended and
    is shown for a while; unknown: a state of a Slurm that is newer than this."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    UNKNOWN = "unknown"


_PHASES = {
    Phase.PENDING: "PD RF RH RQ RD RV SE PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD "
    "SPECIAL_EXIT REVOKED",
    Phase.RUNNING: "R CF S ST SI RS SO PO EX RUNNING CONFIGURING SUSPENDED STOPPED SIGNALING "
    "RESIZING STAGE_OUT POWER_UP_NODE EXPEDITING",
    Phase.ENDING: "CG COMPLETING",
    Phase.GONE: "CD CA F TO NF PR BF DL OOM LF UR COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL "
    "PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY LAUNCH_FAILED UPDATE_DB",
}
_BY_STATE = {code: phase for phase, codes in _PHASES.items() for code in codes.split()}
# reasons for which a job starts only once a person or another job does something
_HELD = ("JobHeld", "Dependency", "BeginTime", "DependencyNeverSatisfied", "Reservation")
_STUCK = (
    "AssocGrp", "Assoc", "QOS", "PartitionDown", "PartitionInactive", "BadConstraints",
    "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "JobArrayTaskLimit", "DeadLine",
    "launch failed requeued held", "PartitionTimeLimit", "PartitionNodeLimit",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Queued:
    """One job of a queue. None where Slurm does not say; `nodes` of a range is its least."""

    job_id: str
    state: str
    phase: Phase
    nodes: int | None
    limit_s: int | None
    submitted_s: int | None
    start_s: int | None  # pending: as the scheduler plans it
    end_s: int | None
    priority: int
    partition: str
    user: str
    name: str
    reason: str

    @property
    def held(self) -> bool:
        """It waits for a person, another job, an instant or a budget, not for its turn."""
        return self.reason.startswith((*_HELD, *_STUCK)) or "held" in self.reason.lower()


def phase_of(state: str) -> Phase:
    """The phase of a state, compact or long, whatever follows it (`CANCELLED by 1001`)."""
    words = state.strip().upper().split()
    return _BY_STATE.get(words[0].rstrip("+"), Phase.UNKNOWN) if words else Phase.UNKNOWN


def read_queue(out: str) -> list[Queued] | None:
    """The jobs of a `squeue -o MARK + SQUEUE_FORMAT`, in the order given; foreign lines are
    ignored. None where there is no header: squeue was not answered."""
    found, answered = [], False
    for fields in marked(out, _NUM_FIXED + 1):
        if fields[0][:1].isdigit():
            found.append(_job(fields))
        else:
            answered = answered or fields[0].strip().upper() == "JOBID"
    return found if answered else None


def marked(out: str, num_fields: int) -> list[list[str]]:
    """The fields of the lines that hold our mark and that many of them; the last may hold bars."""
    rows = []
    for line in out.splitlines():
        _, mark, rest = line.partition(MARK)
        fields = rest.split("|", num_fields - 1) if mark else []
        if len(fields) == num_fields:
            rows.append(fields)
    return rows


def _job(fields: list[str]) -> Queued:
    job_id, state, nodes, limit, submitted, start, end, priority, partition, user, rest = fields
    name, _, reason = rest.partition("|")
    if "|" in reason:  # somebody's job name holds bars; reasons hold none
        name, _, reason = rest.rpartition("|")
    number = priority.strip().partition(".")[0]
    return Queued(
        job_id=job_id.strip(),
        state=state.strip(),
        phase=phase_of(state),
        nodes=count(nodes),
        limit_s=duration_s(limit),
        submitted_s=instant(submitted),
        start_s=instant(start),
        end_s=instant(end),
        priority=whole(number) or 0,
        partition=partition.strip(),
        user=user.strip(),
        name=name,
        reason=reason.strip().strip("()"),
    )
