"""Rules of placement: a job is intended once, submitted once, ends once; what was last seen stays.

Only the agent that intended a job may speak of it. Nothing here moves a block: where compute comes
from is no matter of the ledger. What queues and plans say is kept as it was said last.
"""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry, pack
from eventlog.events import (
    AgentReported,
    JobEnded,
    JobIntended,
    JobObserved,
    JobSubmitted,
    PlacementPlanned,
    PlacementProbed,
    QueueObserved,
)
from leases.books import Books


def intended(books: Books, entry: Entry) -> str:
    event = cast(JobIntended, entry.event)
    if books.value("SELECT 1 FROM jobs WHERE name = ?", event.job_name):
        return f"job {event.job_name} was intended before: a name is used once"
    said = vars(event) | vars(event.shape)
    books.db.execute(
        "INSERT INTO jobs (name, agent, seq, state, nodes, walltime_s, partition, account, chain, "
        "place, after, reason, intended_at, not_before, expected_at) VALUES (:job_name, :agent, "
        ":seq, 'intended', :nodes, :walltime_s, :partition, :account, :chain, :index, :after, "
        ":reason, :at_epoch_s, :not_before_epoch_s, :expected_start_epoch_s)",
        said | {"agent": _agent(entry), "seq": entry.record.sequence},
    )
    return ""


def submitted(books: Books, entry: Entry) -> str:
    event = cast(JobSubmitted, entry.event)
    state, job_id = _job(books, entry, event.job_name)
    if state != "intended":
        return _not_so(event.job_name, state, job_id)
    books.db.execute(
        "UPDATE jobs SET state = 'submitted', job_id = :job_id WHERE name = :job_name", vars(event)
    )
    return ""


def observed(books: Books, entry: Entry) -> str:
    event = cast(JobObserved, entry.event)
    state, job_id = _job(books, entry, event.job_name)
    if state != "submitted" or job_id != event.job_id:
        return _not_so(event.job_name, state, job_id)
    books.db.execute(
        "UPDATE jobs SET phase = :phase, nodes = :nodes, "
        "walltime_s = coalesce(:walltime_s, walltime_s), why_waiting = :why_waiting, "
        "start_said = :expected_start_epoch_s, "
        "started_at = coalesce(:started_epoch_s, started_at), end_by = :end_by_epoch_s "
        "WHERE name = :job_name",
        vars(event),
    )
    return ""


def ended(books: Books, entry: Entry) -> str:
    event = cast(JobEnded, entry.event)
    state, job_id = _job(books, entry, event.job_name)
    if state not in ("intended", "submitted") or (job_id and event.job_id not in (None, job_id)):
        return _not_so(event.job_name, state, job_id)
    books.db.execute(
        "UPDATE jobs SET state = 'ended', job_id = coalesce(job_id, :job_id), outcome = :outcome, "
        "message = :message, started_at = coalesce(:started_epoch_s, started_at), "
        "ended_at = :ended_epoch_s WHERE name = :job_name",
        vars(event),
    )
    return ""


def probed(books: Books, entry: Entry) -> str:
    event = cast(PlacementProbed, entry.event)
    shape = event.shape
    key = f"{shape.partition or ''}/{shape.nodes}/{shape.walltime_s}"
    return _look(books, entry, "probe", key, event.model_dump(exclude_none=True))


def queue(books: Books, entry: Entry) -> str:
    event = cast(QueueObserved, entry.event)
    return _look(books, entry, "queue", event.partition, event.model_dump(exclude_none=True))


def reported(books: Books, entry: Entry) -> str:
    event = cast(AgentReported, entry.event)
    return _look(books, entry, "report", event.state, event.model_dump(exclude_none=True))


def planned(books: Books, entry: Entry) -> str:
    event = cast(PlacementPlanned, entry.event)
    return _look(books, entry, "plan", "", event.model_dump(exclude_none=True))


def _look(books: Books, entry: Entry, kind: str, key: str, said: object) -> str:
    assert entry.envelope is not None
    books.db.execute(
        "INSERT OR REPLACE INTO looks (agent, kind, key, seq, id, at, said) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (_agent(entry), kind, key, *entry.token, entry.envelope.at, pack(said)),
    )
    return ""


def _agent(entry: Entry) -> str:
    return entry.record.subject.partition(".")[2]


def _job(books: Books, entry: Entry, name: str) -> tuple[str, str]:
    """State and id of a job of this agent; ('', '') where it has none of that name."""
    row = books.db.execute(
        "SELECT state, coalesce(job_id, '') FROM jobs WHERE name = ? AND agent = ?",
        (name, _agent(entry)),
    ).fetchone()
    return (str(row[0]), str(row[1])) if row else ("", "")


def _not_so(name: str, state: str, job_id: str) -> str:
    if not state:
        return f"this agent never intended a job {name}"
    return f"job {name} is {state}" + (f" as {job_id}" if job_id else "")


RULES = {
    "job.intended": intended,
    "job.submitted": submitted,
    "job.observed": observed,
    "job.ended": ended,
    "placement.probed": probed,
    "queue.observed": queue,
    "agent.reported": reported,
    "placement.planned": planned,
}
