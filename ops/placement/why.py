"""What placement is about, from the log alone: by site, the job, the wait, the error, the step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from leases.jobs import Job, jobs, looks, plan
from ops.describe import clean


def account(db: sqlite3.Connection, run: str, now: float) -> dict[str, Any]:
    """Everything that `atoll place why` tells. Times are epoch seconds, waits seconds."""
    newest, all_jobs = plan(db), jobs(db)
    said = newest.said if newest else {}
    named = {one.agent for one in looks(db, "report")} | {job.agent for job in all_jobs}
    named |= {str(one.get("site")) for one in said.get("actions", ())}
    return {
        "run": run,
        "plan": None
        if newest is None
        else {
            "reason": said.get("reason", ""),
            "holder": said.get("holder", ""),
            "age_s": round(max(0.0, now - newest.at)),
        },
        "sites": [_site(db, name, all_jobs, said, now) for name in sorted(named)],
    }


def _site(
    db: sqlite3.Connection, name: str, all_jobs: list[Job], said: dict[str, Any], now: float
) -> dict[str, Any]:
    mine = [job for job in all_jobs if job.agent == name]
    reports = looks(db, "report", name)
    actions = [one for one in said.get("actions", ()) if one.get("site") == name]
    estimates = [one for one in said.get("estimates", ()) if one.get("site") == name]
    return {
        "site": name,
        "agent": reports[-1].said if reports else None,
        "jobs": [_job(job, now) for job in mine if job.state != "ended"],
        "num_ended": sum(job.state == "ended" for job in mine),
        "next": [{key: one[key] for key in one if key != "site"} for one in actions],
        "waits": [{key: one[key] for key in one if key != "site"} for one in estimates],
        "last_error": _last_error(db, name, mine),
    }


def _job(job: Job, now: float) -> dict[str, Any]:
    return {
        "name": job.name,
        "job_id": job.job_id,
        "state": job.phase or job.state,
        "shape": [job.nodes, job.walltime_s],
        "why_waiting": job.why_waiting,
        "expected_start_epoch_s": job.start_said,
        "end_by_epoch_s": job.end_by,
        "reason": job.reason,
    }


def _last_error(db: sqlite3.Connection, name: str, mine: list[Job]) -> str:
    """The newest word of trouble: of the agent, a probe, or a job that failed."""
    found = [
        (one.token[0], str(one.said.get("message", "")))
        for one in looks(db, "report", name)
        if one.said.get("state") == "troubled"
    ]
    found += [
        (one.token[0], str(one.said.get("message", "")))
        for one in looks(db, "probe", name)
        if one.said.get("trouble")
    ]
    found += [
        (job.seq, f"{job.outcome}: {job.message}")
        for job in mine
        if job.outcome in ("failed", "never_submitted")
    ]
    return max(found)[1] if found else ""


def lines(said: dict[str, Any]) -> Iterator[str]:
    """The account for a person."""
    made = said["plan"]
    if made is None:
        yield f"run {said['run']}: no plan yet; `atoll place planner {said['run']}` makes them"
    else:
        yield clean(f"run {said['run']}: planned {_ago(made['age_s'])} by {made['holder'] or '?'}")
    for site in said["sites"]:
        yield from map(clean, _site_lines(site))


def _site_lines(site: dict[str, Any]) -> Iterator[str]:
    agent = site["agent"]
    state = f"agent {agent['state']}" if agent else "no agent has reported"
    yield f"{site['site']}: {state}, {site['num_ended']} jobs ended"
    for job in site["jobs"]:
        more = f", {job['why_waiting']}" if job["why_waiting"] else ""
        yield f"  job {job['job_id'] or '?'} {job['state']}, {_shape(job['shape'])}{more}"
    for wait in site["waits"]:
        low, middle, high = (_span(one) for one in wait["waits_s"])
        yield f"  {_shape(wait['shape'])}: starts in {middle} ({low} to {high}; {wait['text']})"
    for step in site["next"]:
        shape = f" {_shape(step['shape'])}" if step.get("shape") else ""
        yield f"  next: {step['do']}{shape}: {step.get('reason', '')}"
    if site["last_error"]:
        yield f"  last error: {site['last_error']}"


def _shape(shape: list[int]) -> str:
    nodes = "1 node" if shape[0] == 1 else f"{shape[0]} nodes"
    return f"{nodes} for {_span(shape[1])}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ago(seconds: float) -> str:
    return f"{_span(seconds)} ago"
