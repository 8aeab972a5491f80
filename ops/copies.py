"""Two copies of one log, held against each other, event by event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from eventlog.chain import Record, extend, start
from eventlog.errors import LogDamaged
from eventlog.export import read_export, to_end
from eventlog.log import EventLog


@dataclass(frozen=True, slots=True)
class Comparison:
    """Equal through `common` (0: not even the first), with `log_digest` (hex) there. `first`,
    `second`: how far each goes. `problem`: the first difference; '' where one only ends earlier."""

    common: int
    log_digest: str
    first: int
    second: int
    problem: str


async def of_file(path: Path) -> AsyncIterator[Record]:
    """A file's records. Raises LogDamaged at the first that is not what was exported."""
    for record in read_export(path):
        yield record


async def of_log(log: EventLog) -> AsyncIterator[Record]:
    """A log's records up to its end by then."""
    async for records in to_end(log):
        for record in records:
            yield record


async def compare(
    run: str, first: AsyncIterator[Record], second: AsyncIterator[Record]
) -> Comparison:
    """Read both to the end of the shorter, or to the first difference."""
    digest, common = start(run), 0
    problem = ""
    while True:
        ours, why = await _next(first)
        theirs, other = await _next(second)
        if why or other:
            problem = "; ".join(
                f"the {name} copy is damaged: {what}"
                for name, what in (("first", why), ("second", other))
                if what
            )
            break
        if ours is None or theirs is None:
            ends = [_last(ours, common), _last(theirs, common)]
            for number, (more, records) in enumerate(((ours, first), (theirs, second))):
                while more and not problem:
                    ends[number] = more.sequence
                    more, why = await _next(records)
                    name = ("first", "second")[number]
                    problem = f"the {name} copy is damaged: {why}" if why else ""
            return Comparison(common, digest.hex(), ends[0], ends[1], problem)
        if ours != theirs:
            problem = _difference(ours, theirs)
            break
        digest, common = extend(digest, ours), ours.sequence
    return Comparison(common, digest.hex(), common, common, problem)


def shortened(found: Comparison, last: int) -> Comparison:
    """Of a log and its second copy, which went on: wrong where the log, whose end is `last` by now,
    is still the shorter one, for a second copy has nothing that was not in the log."""
    if found.problem or last >= found.second:
        return found
    what = f"the log ends at {last}, and its second copy goes on to {found.second}: it lost its end"
    return replace(found, problem=what)


async def _next(records: AsyncIterator[Record]) -> tuple[Record | None, str]:
    try:
        return await anext(records, None), ""
    except LogDamaged as error:
        return None, str(error)


def _last(record: Record | None, common: int) -> int:
    return record.sequence if record else common


def _difference(ours: Record, theirs: Record) -> str:
    """What is not the same about two events at one place."""
    for name in ("sequence", "subject", "time_ns", "payload"):
        mine, yours = getattr(ours, name), getattr(theirs, name)
        if mine != yours:
            said = ("", "") if name == "payload" else (f": {mine}", f", {yours}")
            return f"they differ at sequence {ours.sequence} in {name}{said[0]}{said[1]}"
    raise AssertionError("equal events do not differ")
