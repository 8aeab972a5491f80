"""Whether a fork is what it says, by its parent's log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from eventlog.chain import Record
from eventlog.codec import Entry
from eventlog.events import Lineage
from eventlog.export import read_export, read_header, to_end
from eventlog.projector import Projection
from leases.forks import unlike
from leases.table import LeaseTable
from ops.output import Reach

_BATCH = 1000


async def verify(lineage: Lineage, parent: Path | str, broker: Reach) -> str:
    """Why the parent's log, a file or a run on the broker, is not what the lineage says; '' where
    it is. Raises LogDamaged where the file is damaged before that, and as `ops.connect.opened`."""
    if isinstance(parent, Path):
        run = read_header(parent)
        made = await _event(run, _of_file(parent), _sequence(lineage))
    else:
        from ops.connect import opened

        run = parent
        async with opened(parent, broker) as (log, *_):
            made = await _event(run, to_end(log), _sequence(lineage))
    if run != lineage.run:
        return f"this is the log of run {run}; it was forked from {lineage.run}"
    return unlike(lineage, *made)


def _sequence(lineage: Lineage) -> int:
    return lineage.made[0] if lineage.made else 0


async def _of_file(path: Path) -> AsyncIterator[list[Record]]:
    some: list[Record] = []
    for record in read_export(path):
        some.append(record)
        if len(some) == _BATCH:
            yield some
            some = []
    yield some


async def _event(
    run: str, batches: AsyncIterator[list[Record]], sequence: int
) -> tuple[Entry | None, str]:
    """The event at a sequence, and the fold's word on it; the log behind it is not read."""
    with Projection(":memory:", [LeaseTable()], run) as projection:
        async for records in batches:
            wanted = [record for record in records if record.sequence <= sequence]
            for entry, (void,) in projection.apply(wanted):
                if entry.record.sequence == sequence:
                    return entry, void
            if len(wanted) < len(records):
                break
    return None, ""
