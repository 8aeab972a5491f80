"""Where the live view's records come from: a log that is over, one that goes on, or a past one
played again by its own times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.live import Live

from eventlog.chain import Record
from eventlog.errors import LogDamaged
from eventlog.feed import Feed
from eventlog.log import EventLog
from ops.watch.link import LinkWatch
from ops.watch.live import LiveView
from ops.watch.player import Player

FRAME_S = 0.25  # between two frames, while nothing comes
ADVICE_S = 2.0  # of silence, before it is said what a person can do
READ_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Beat:
    """Records that came, perhaps none, and what time it is (Unix seconds, as the view shows it)."""

    records: Sequence[Record]
    now_s: float


async def follow(
    log: EventLog, clock: Callable[[], float] = time.time
) -> AsyncGenerator[Beat, None]:
    """The whole log and then what comes, for ever; a beat at least every FRAME_S."""
    async with Feed(log, 0) as feed:
        while True:
            yield Beat(await feed.next(FRAME_S), clock())


async def at_once(past: AsyncIterator[list[Record]]) -> AsyncGenerator[Beat, None]:
    """A past log as fast as it can be read."""
    async for records in past:
        yield Beat(records, records[-1].time_ns / 1e9)


async def batches(records: Iterable[Record]) -> AsyncIterator[list[Record]]:
    """Records of a file as a log would give them. Raises LogDamaged as they do, after everything
    that stands before the damage."""
    some: list[Record] = []
    damage: LogDamaged | None = None
    try:
        for record in records:
            some.append(record)
            if len(some) == READ_RECORDS:
                yield some
                some = []
    except LogDamaged as error:
        damage = error
    if some:
        yield some
    if damage:
        raise damage


async def replay(
    past: AsyncIterator[list[Record]],
    speed: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Beat, None]:
    """A past log by its own times, `speed` times as fast: each record comes when it is due, and
    between two that are far apart there are beats without records."""
    began, first_s = clock(), None
    async for records in past:
        for record in records:
            time_s = record.time_ns / 1e9
            first_s = time_s if first_s is None else first_s
            due = began + (time_s - first_s) / speed
            while (wait_s := due - clock()) > 0:
                await sleep(min(wait_s, FRAME_S))
                if due - clock() > 0:
                    yield Beat([], first_s + (clock() - began) * speed)
            yield Beat([record], time_s)


async def show(
    view: LiveView,
    console: Console,
    beats: AsyncGenerator[Beat, None],
    link: LinkWatch | None = None,
) -> None:
    """Draw the view on a terminal until the run has finished or the beats end. What becomes of the
    link to the broker stands among the events."""
    drawn = 0.0
    async with aclosing(beats):
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as screen:
            now_s = 0.0
            async for beat in beats:
                view.update(beat.records)
                now_s = beat.now_s
                if link is not None and (news := link.look()):
                    view.remark(news, now_s)
                if time.monotonic() - drawn >= FRAME_S * 0.8:
                    screen.update(view.frame(now_s), refresh=True)
                    drawn = time.monotonic()
                if view.outcome:
                    break
            screen.update(view.frame(now_s), refresh=True)


async def scrub(
    make: Callable[[], LiveView], console: Console, player: Player, keys: asyncio.Queue[str]
) -> LiveView:
    """Draw a past log on a terminal as the player says, until that is over; the last view, of the
    log's end or wherever one quit. Seeking back folds the log anew, up to there."""
    view, fed, drawn = make(), 0, time.monotonic()
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as screen:
        while True:
            while not keys.empty():
                player.press(keys.get_nowait())
            if player.due < fed:
                view.close()
                view, fed = make(), 0
            while fed < player.due:
                some = player.records[fed : min(player.due, fed + READ_RECORDS)]
                view.update(some)
                fed += len(some)
            screen.update(view.frame(player.now_s, player.scrubber), refresh=True)
            if player.over:
                screen.update(view.frame(player.now_s), refresh=True)
                return view
            await asyncio.sleep(FRAME_S / 2)
            now = time.monotonic()
            player.pass_time(now - drawn)
            drawn = now


async def tell(
    view: LiveView,
    out: TextIO,
    beats: AsyncGenerator[Beat, None],
    talk: Callable[[str], None] = lambda _: None,
    link: LinkWatch | None = None,
) -> None:
    """Write one line an event that is worth telling, at once, until the run has finished or the
    beats end. When nothing has come for a while, what a person can do about it is talked of; and
    what becomes of the link to the broker."""
    talked: tuple[str, ...] = ()
    quiet_s: float | None = None
    async with aclosing(beats):
        async for beat in beats:
            for told in view.update(beat.records):
                out.write(told.line() + "\n")
            out.flush()
            if link is not None and (news := link.look()):
                talk(news)
            if view.outcome:
                return
            if beat.records or quiet_s is None:
                quiet_s = beat.now_s
            elif beat.now_s - quiet_s >= ADVICE_S:
                quiet_s, advice = beat.now_s, view.scene(beat.now_s).next
                for line in advice:
                    if line not in talked:
                        talk(f"next: {line}")
                talked = advice
