"""A source's pen: counters, links, and what it does when somebody else wrote."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Literal

import pytest

from eventlog.codec import Entry, decode
from eventlog.errors import Conflict, LogUnavailable
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

    two.set(1, "coordinator-1", 1)
    assert await two.append([CoordinatorTick(tick=5)], Stamp()) == 2
    envelopes = [entry.envelope for entry in await entries(log)]
    assert [(e.n, e.previous) for e in envelopes if e] == [(1, None), (2, "coordinator-1")]


async def test_behind_a_void_event_the_counter_stays_and_the_place_moves() -> None:
    log = MemoryLog("r")
    await pen(log, "site.a").append([CoordinatorTick(tick=1), CoordinatorTick(tick=2)], Stamp())
    writer = pen(log, "site.a")
    writer.set(1, "site.a-1", 2)  # the second event was judged void
    assert await writer.append([CoordinatorTick(tick=3)], Stamp()) == 3
    newest = (await entries(log))[-1].envelope
    assert newest is not None
    assert newest.n == 2


class Deaf(MemoryLog):
    """A log whose next acknowledgement is lost, with or without the append itself."""

    loses: Literal["nothing", "answer", "append"] = "nothing"

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        loses, self.loses = self.loses, "nothing"
        if loses != "append":
            sequence = await super().append(subject, payloads, expected_last)
        if loses != "nothing":
            raise LogUnavailable("no answer")
        return sequence


@pytest.mark.parametrize("loses", ["answer", "append"])
@pytest.mark.parametrize("folded", [False, True])
async def test_a_retry_writes_once_whatever_was_lost(
    loses: Literal["answer", "append"], folded: bool
) -> None:
    log = Deaf("r")
    writer = pen(log, "coordinator", chained=True)
    await writer.append([CoordinatorTick(tick=1)], Stamp())
    log.loses = loses
    with pytest.raises(LogUnavailable):
        await writer.append([CoordinatorTick(tick=2), CoordinatorTick(tick=3)], Stamp())
    assert (writer.n, writer.last, writer.previous) == (1, 1, "coordinator-1")
    if folded and loses == "answer":  # the reader has seen the events before the retry
        writer.set(3, "coordinator-3", 3)
    assert await writer.retry() == 3
    assert (writer.n, writer.last, writer.previous) == (3, 3, "coordinator-3")
    assert await writer.append([CoordinatorTick(tick=4)], Stamp()) == 4
    envelopes = [entry.envelope for entry in await entries(log)]
    assert [(e.n, e.id) for e in envelopes if e] == [(n, f"coordinator-{n}") for n in range(1, 5)]
