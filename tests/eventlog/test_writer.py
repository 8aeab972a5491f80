"""A source's pen: counters, links, and what it does when somebody else wrote."""

from __future__ import annotations

from itertools import count

import pytest

from eventlog.codec import Entry, decode
from eventlog.errors import Conflict
from eventlog.events import BlockStarted, CoordinatorElected, CoordinatorTick
from eventlog.memory_log import MemoryLog
from eventlog.writer import Stamp, Writer


def pen(log: MemoryLog, subject: str, chained: bool = False) -> Writer:
    numbers = count(1)
    return Writer(log, subject, chained, lambda: 50.0, lambda: f"{subject}-{next(numbers)}")


async def entries(log: MemoryLog) -> list[Entry]:
    return [decode(record) for record in await log.read(0)]


async def test_events_are_numbered_and_linked_across_appends() -> None:
    log = MemoryLog("r")
    coordinator, site = pen(log, "coordinator", chained=True), pen(log, "site.a")
    claim = CoordinatorElected(holder="h", reason="none yet")
    assert await coordinator.append([claim], Stamp()) == 1
    start = BlockStarted(epoch=0, block=1, lease=(1, "x"))
    assert await site.append([start], Stamp(incarnation=(1, "i"), seen=(1, "s"))) == 2
    ticks = [CoordinatorTick(tick=number) for number in (1, 2)]
    assert await coordinator.append(ticks, Stamp(term=1)) == 4

    envelopes = [entry.envelope for entry in await entries(log)]
    assert all(envelope is not None for envelope in envelopes)
    seen = [(e.source, e.n, e.id, e.previous, e.term) for e in envelopes if e]
    assert seen == [
        ("coordinator", 1, "coordinator-1", None, None),
        ("site.a", 1, "site.a-1", None, None),
        ("coordinator", 2, "coordinator-2", "coordinator-1", 1),
        ("coordinator", 3, "coordinator-3", "coordinator-2", 1),
    ]
    assert envelopes[1] is not None
    assert (envelopes[1].incarnation, envelopes[1].seen) == ((1, "i"), (1, "s"))
    assert {(e.run, e.at) for e in envelopes if e} == {("r", 50.0)}
    assert (coordinator.n, coordinator.last, coordinator.previous) == (3, 4, "coordinator-3")
    assert coordinator.ids == ["coordinator-2", "coordinator-3"]


async def test_a_conflict_moves_nothing_and_reading_on_does() -> None:
    log = MemoryLog("r")
    one, two = (pen(log, "coordinator", chained=True) for _ in range(2))
    await one.append([CoordinatorTick(tick=1)], Stamp())
    with pytest.raises(Conflict) as caught:
        await two.append([CoordinatorTick(tick=5), CoordinatorTick(tick=6)], Stamp())
    assert caught.value.actual == 1
    assert (two.n, two.last, two.previous) == (0, 0, None)
    assert await log.last_sequence() == 1

    for entry in await entries(log):
        two.observe(entry, valid=True)
    assert (two.n, two.last, two.previous) == (1, 1, "coordinator-1")
    assert await two.append([CoordinatorTick(tick=5)], Stamp()) == 2
    assert [entry.envelope.n for entry in await entries(log) if entry.envelope] == [1, 2]


async def test_a_void_event_moves_the_place_but_not_the_counter() -> None:
    log = MemoryLog("r")
    one, two = pen(log, "site.a"), pen(log, "site.a")
    await one.append([CoordinatorTick(tick=1), CoordinatorTick(tick=2)], Stamp())
    first, second = await entries(log)
    two.observe(first, valid=True)
    two.observe(second, valid=False)
    assert (two.n, two.last, two.previous) == (1, 2, "site.a-1")
    two.observe(first, valid=True)  # an old event changes nothing
    assert (two.n, two.last) == (1, 2)


async def test_other_subjects_do_not_move_the_pen() -> None:
    log = MemoryLog("r")
    await pen(log, "site.b").append([CoordinatorTick(tick=1)], Stamp())
    mine = pen(log, "site.a")
    for entry in await entries(log):
        mine.observe(entry, valid=True)
    assert (mine.n, mine.last, mine.previous) == (0, 0, None)
