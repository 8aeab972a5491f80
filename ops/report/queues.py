"""What a report says of queues: the jobs of a run, and how well their starts were forecast.

Pure: the lease table's jobs and the starts of one log in, plain values out. Times are seconds since
the log's first record; agents tell them in whole seconds by the clocks of their login nodes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from leases.jobs import Job, jobs
from ops.placement.coverage import coverage, curve, num_prior
from ops.placement.history import Start
from ops.placement.shapes import Basis


def queues(db: sqlite3.Connection, starts: Sequence[Start], began_ns: int | None) -> dict[str, Any]:
    """The jobs that agents intended, and of those that started what was forecast (docs/report.md);
    {} where there is none. `db`: of the lease table."""
    found = jobs(db)
    if not found:
        return {}
    began_s = (began_ns or 0) / 1e9
    judged = [start.judged for start in starts]
    return {
        "jobs": [_job(job, began_s) for job in found],
        "starts": [_start(start, began_s) for start in starts],
        "from_prior": num_prior(judged),
        "bounds": [one.as_json() for one in coverage(judged)],
        "curve": curve(judged),
        "prior_curve": curve(judged, from_prior=True),
    }


def _job(job: Job, began_s: float) -> dict[str, Any]:
    def since(epoch_s: int | None) -> float | None:
        return None if epoch_s is None else epoch_s - began_s

    since_s = since(job.not_before or job.intended_at)
    started_s = since(job.started_at)
    waited = None not in (since_s, started_s)
    return {
        "site": job.agent,
        "job": job.name,
        "job_id": job.job_id,
        "nodes": job.nodes,
        "walltime_s": job.walltime_s,
        "chain": job.chain,
        "index": job.index,
        "state": job.outcome or job.phase or job.state,
        "since_s": since_s,
        "expected_s": since(job.expected_at),
        "started_s": started_s,
        "ended_s": since(job.ended_at),
        "wait_s": max(0.0, (started_s or 0.0) - (since_s or 0.0)) if waited else None,
        "message": job.message,
        "reason": job.reason,
    }


def _start(start: Start, began_s: float) -> dict[str, Any]:
    """`low_s`, `said_s`, `high_s`: the wait as forecast, at 10, 50 and 90 per cent."""
    estimate, seen = start.judged.forecast.estimate, start.judged.observation
    return {
        "site": start.site,
        "job": start.job,
        "since_s": seen.at_s - began_s,
        "wait_s": seen.wait_s,
        "low_s": estimate.q(0.1),
        "said_s": estimate.q(0.5),
        "high_s": estimate.q(0.9),
        "prior": estimate.basis is Basis.PRIOR,
        "by": estimate.text,
    }
