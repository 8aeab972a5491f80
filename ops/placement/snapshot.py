"""Answers as events: a probe's, and a look at a queue, which estimates are made from, without
anybody's name.

Whole nodes are what it counts in. Nodes of the partition that are busy with jobs of other
partitions are one job more, whose end is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from eventlog.events import (
    MAX_QUEUED,
    JobShape,
    KeptNodes,
    PlacementProbed,
    QueuedJob,
    QueueObserved,
)
from ops.placement.scheduler import Machine
from ops.placement.shapes import PendingJob, QueueSnapshot, Reservation, RunningJob
from ops.placement.slurm.probes import Estimate
from ops.placement.slurm.queues import Phase, Queued
from ops.placement.slurm.troubles import Kind, Trouble

_FAR_S = 30 * 86_400  # the end of a job that has no time limit, as far as plans reach


def observed(
    partition: str, jobs: Sequence[Queued], machine: Machine, ours: Collection[str], now: int
) -> QueueObserved:
    """The event. `ours`: ids of our jobs. Pending jobs stand in the order of their priority; of
    more than an event holds, those are left out that come last, and `complete` is false."""
    here = [one for one in jobs if partition in one.partition.split(",")]
    running = [one for one in here if one.phase in (Phase.RUNNING, Phase.ENDING) and one.nodes]
    pending = [one for one in here if one.phase == Phase.PENDING and one.nodes]
    pending.sort(key=lambda one: (-one.priority, one.submitted_s or 0, one.job_id))
    nodes = [one for one in machine.nodes if one.partition == partition]
    busy = sum(one.num for one in nodes if one.busy)
    strange = max(0, busy - sum(one.nodes or 0 for one in running))
    foreign = [QueuedJob(nodes=strange)] if strange else []
    return QueueObserved(
        partition=partition,
        at_epoch_s=now,
        total_nodes=sum(one.num for one in nodes),
        free_nodes=sum(one.num for one in nodes if one.free),
        down_nodes=sum(one.num for one in nodes if not one.free and not one.busy),
        up=_is_up(partition, machine),
        complete=len(pending) <= MAX_QUEUED
        and len(running) < MAX_QUEUED
        and not machine.hides_jobs,
        running=tuple([_queued(one, ours, one.end_s) for one in running[: MAX_QUEUED - 1]])
        + tuple(foreign),
        pending=tuple(_queued(one, ours, one.submitted_s) for one in pending[:MAX_QUEUED]),
        reservations=tuple(_kept(partition, machine)),
    )


def probed(shape: JobShape, said: Estimate | Trouble, now: int) -> PlacementProbed:
    """What a probe was told: an unknown start stays unknown."""
    fields: dict[str, object] = {"shape": shape, "asked_epoch_s": now}
    if isinstance(said, Trouble):
        outcome = "refused" if said.kind is Kind.PERMANENT else "unknown"
        fields |= {"outcome": outcome, "message": said.text, "trouble": str(said.kind)}
    elif said.start_s is None:
        fields |= {"outcome": "unknown", "message": "the start is not known"}
    else:
        where = f"on {said.nodes}" if said.nodes else ""
        where += f", preempting jobs {said.preempts}" if said.preempts else ""
        fields |= {"outcome": "estimated", "start_epoch_s": said.start_s, "message": where[:4000]}
    return PlacementProbed.model_validate(fields)


def snapshot(said: dict[str, Any]) -> QueueSnapshot:
    """What estimates are made from, of a QueueObserved's fields as they were folded."""
    event = QueueObserved.model_validate(said)
    now = event.at_epoch_s
    return QueueSnapshot(
        now_s=float(now),
        total_nodes=event.total_nodes,
        free_nodes=event.free_nodes,
        down_nodes=event.down_nodes,
        running=tuple(
            RunningJob(one.nodes, float(one.at_epoch_s or now + _FAR_S), one.job_id, one.ours)
            for one in event.running
        ),
        pending=tuple(
            PendingJob(
                one.nodes,
                float(one.limit_s or _FAR_S),
                None if one.at_epoch_s is None else float(one.at_epoch_s),
                one.job_id,
                one.ours,
                one.held,
            )
            for one in event.pending
        ),
        reservations=tuple(
            Reservation(float(one.start_epoch_s), float(one.end_epoch_s), one.nodes, one.name)
            for one in event.reservations
        ),
        up=event.up,
        complete=event.complete,
    )


def _queued(one: Queued, ours: Collection[str], at: int | None) -> QueuedJob:
    mine = one.job_id in ours
    assert one.nodes is not None
    return QueuedJob(
        nodes=one.nodes,
        limit_s=one.limit_s,
        at_epoch_s=at,
        ours=mine,
        held=one.phase == Phase.PENDING and one.held,
        job_id=one.job_id if mine else None,
    )


def _is_up(partition: str, machine: Machine) -> bool:
    """DOWN and DRAIN partitions take no job or start none; sinfo and scontrol both say so."""
    nodes = [one.up for one in machine.nodes if one.partition == partition]
    stated = [one.up for one in machine.partitions if one.name == partition]
    return bool(nodes) and all(nodes) and all(stated)


def _kept(partition: str, machine: Machine) -> list[KeptNodes]:
    """Reservations of the partition's nodes. One whose nodes are only in part ours counts with as
    many as the partition has at most."""
    total = sum(one.num for one in machine.nodes if one.partition == partition)
    return [
        KeptNodes(
            start_epoch_s=one.start_s,
            end_epoch_s=one.end_s,
            nodes=min(one.num_nodes, total),
            name=one.name,
        )
        for one in machine.reservations
        if one.partition in ("", partition) and one.num_nodes and total
    ]
