"""Questions about placement that agents, planners and people ask of the lease table: reads only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from eventlog.codec import unpack
from eventlog.events import Token

_JOB = (
    "SELECT name, agent, seq, state, job_id, nodes, walltime_s, partition, account, chain, place, "
    "after, reason, intended_at, not_before, expected_at, phase, why_waiting, start_said, "
    "started_at, end_by, ended_at, outcome, message FROM jobs "
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of ours, as its agent tells it. Times are epoch seconds, None where unknown.

    state: intended, submitted, ended. phase: '' before it was seen, then pending or running.
    expected_at: what the plan expected when it was intended; start_said: the scheduler's plan now.
    """

    name: str
    agent: str
    seq: int  # of its JobIntended
    state: str
    job_id: str | None
    nodes: int
    walltime_s: int
    partition: str | None
    account: str | None
    chain: int
    index: int
    after: str | None
    reason: str
    intended_at: int | None
    not_before: int | None
    expected_at: int | None
    phase: str
    why_waiting: str
    start_said: int | None
    started_at: int | None
    end_by: int | None
    ended_at: int | None
    outcome: str
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """What an agent or planner said last of one thing: the event's fields, and where it stands.
    `at`: by the writer's clock, for people."""

    agent: str
    kind: str
    key: str
    token: Token
    at: float
    said: dict[str, Any]


def jobs(db: sqlite3.Connection, agent: str | None = None, state: str | None = None) -> list[Job]:
    """Jobs in the order in which they were intended, of all agents or one, in all states or one."""
    where, values = [], []
    for column, value in (("agent", agent), ("state", state)):
        if value is not None:
            where.append(f"{column} = ?")
            values.append(value)
    clause = f"WHERE {' AND '.join(where)} " if where else ""
    return [Job(*row) for row in db.execute(f"{_JOB}{clause}ORDER BY seq", values)]


def looks(db: sqlite3.Connection, kind: str, agent: str | None = None) -> list[Look]:
    """What was last said of each thing of a kind (probe, queue, report, plan), oldest first."""
    sql = "SELECT agent, kind, key, seq, id, at, said FROM looks WHERE kind = ? "
    rows = db.execute(sql + "AND (? IS NULL OR agent = ?) ORDER BY seq", (kind, agent, agent))
    return [Look(row[0], row[1], row[2], (row[3], row[4]), row[5], unpack(row[6])) for row in rows]


def plan(db: sqlite3.Connection) -> Look | None:
    """The plan in force: the newest one."""
    found = looks(db, "plan")
    return found[-1] if found else None
