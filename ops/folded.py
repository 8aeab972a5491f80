"""The folded state of a run for commands that look, and the operator's pen for those that ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eventlog.codec import Entry
from eventlog.errors import AtollError, Conflict, LockHeld, RunUnknown
from eventlog.events import OPERATOR, DrainRequested, Event
from eventlog.export import to_end
from eventlog.keys import Key
from eventlog.log import EventLog
from eventlog.projector import Projection, run_projection
from eventlog.writer import Stamp, Writer
from leases import requests
from leases.table import LeaseTable
from leases.view import View
from ops.home import Home

_ATTEMPTS = 20


class RequestVoid(AtollError):
    """What the operator asked for does not hold in the run's state; the text says why."""


def refused(view: View, event: Event) -> str:
    """Why a request would change nothing as the run stands; '' where it would."""
    run = view.run()
    if isinstance(event, DrainRequested):
        one = view.live_at(event.site)
        if run.state == "finished":
            return f"the run is finished already ({run.reason})"
        if one is None:
            return f"no live site {event.site}"
        if one.state != "live" or one.drain:
            return f"{event.site} is asked to leave already, or leaves by itself"
        return ""
    why = requests.refusal(event.type, run.state) if event.type in requests.REQUESTS else ""
    return f"{why} ({run.reason})" if why and run.reason else why


@asynccontextmanager
async def folded(log: EventLog, name: str = "operator") -> AsyncIterator[Projection]:
    """The lease table of the whole log as it stands now, kept in ATOLL_HOME between commands.

    Raises LogDamaged, RunUnknown where the log is still empty.
    """
    try:
        projection = Projection(Home.find().projection(log.run, name), [LeaseTable()], log.run)
    except LockHeld:  # another command reads just now
        projection = Projection(":memory:", [LeaseTable()], log.run)
    with projection:
        await projection.check(log)
        await run_projection(projection, log)
        if not View(projection.db).exists():
            raise RunUnknown(f"run {log.run} was never completed: create it again")
        yield projection


async def entries(log: EventLog) -> AsyncIterator[tuple[Entry, str]]:
    """Every event of a log as it stands now, with the fold's word on it; folded in memory. Raises
    LogDamaged, LogUnavailable."""
    with Projection(":memory:", [LeaseTable()], log.run) as projection:
        async for records in to_end(log):
            for entry, (void,) in projection.apply(records):
                yield entry, void


async def request(log: EventLog, event: Event, key: Key | None = None) -> int:
    """Append an operator's event, judged as it stands: its sequence. Raises RequestVoid where it
    would be void, and nothing is written then; where the run has changed in that moment, nothing
    but the void event. `key`: the operator's. Raises LogUnavailable."""
    async with folded(log) as projection:
        writer, view = Writer(log, OPERATOR, key=key), View(projection.db)
        for _ in range(_ATTEMPTS):
            if refusal := refused(view, event):
                raise RequestVoid(f"run {log.run}: {refusal}; nothing was written")
            writer.set(*view.pen(OPERATOR))
            try:
                sequence = await writer.append([event], Stamp())
            except Conflict:
                await run_projection(projection, log)
                continue
            voids: list[str] = []
            while projection.position.sequence < sequence:
                for entry, why in projection.apply(await log.read(projection.position.sequence)):
                    voids += why if entry.record.sequence == sequence else []
            if any(voids):
                raise RequestVoid(f"run {log.run}: {voids[0]}")
            return sequence
    raise RequestVoid(f"run {log.run}: other operators write faster than this one; try again")
