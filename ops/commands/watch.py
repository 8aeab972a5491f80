"""`atoll watch`: the live view of a run, or of a log that is over."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.output import Reach, broker_option, file_or_run, files, json_option, print_json, say

if TYPE_CHECKING:
    from rich.console import Console

    from eventlog.chain import Record
    from eventlog.log import EventLog
    from ops.watch.link import LinkWatch
    from ops.watch.live import LiveView


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option("--once", is_flag=True, help="Print one picture of how it stands now, and end.")
@click.option("--replay", is_flag=True, help="Play the log from its beginning, by its own times.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    metavar="X",
    help="With --replay: so many times as fast.",
)
@broker_option
@json_option
def watch(
    target: str, once: bool, replay: bool, speed: float | None, broker: Reach, as_json: bool
) -> None:
    """Watch a run: its sites, blocks and events, and what it waits for and until when.

    Ends when the run has finished; Ctrl-C ends the view, not the run. Where the run waits for a
    person, it says what to type. Where stdout is no terminal: one line an event. Of a FILE, an
    exported log, the end is shown. --json implies --once. With --replay on a terminal, space
    pauses, arrows, Home and End seek, + and - change the speed, q quits.
    """
    if replay and (once or as_json):
        raise click.UsageError("--replay plays a log; --once and --json show how it stands")
    if speed is not None and not replay:
        raise click.UsageError("--speed says how fast to play: add --replay")
    found = file_or_run(target)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a picture with a ? in it is better than none
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if as_json or once or (isinstance(found, Path) and terminal and not replay):
        asyncio.run(_once(found, broker, as_json))
    else:
        asyncio.run(_live(found, broker, (speed or 1.0) if replay else None, terminal))


async def _once(target: Path | str, broker: Reach, as_json: bool) -> None:
    """Print one picture, also of a damaged file up to the damage."""
    from ops.watch.advice import Advisor
    from ops.watch.live import LiveView

    console = _console()
    async with _opened(target, broker) as (run, log, _):
        file = target if isinstance(target, Path) else None
        view = LiveView(console, run, fit=False, advisor=Advisor(file))
        try:
            async for records in _past(target, log):
                view.update(records)
        finally:
            now_s = view.end_s if log is None else None
            if as_json:
                print_json(view.scene(now_s).as_json())
            else:
                console.print(view.frame(now_s))


async def _live(target: Path | str, broker: Reach, speed: float | None, terminal: bool) -> None:
    """Show or tell what happens. speed: of a replay; None for what is there and what comes."""
    from ops.watch import play
    from ops.watch.advice import Advisor
    from ops.watch.live import LiveView

    console = _console()
    async with _opened(target, broker) as (run, log, link):
        file = target if isinstance(target, Path) else None
        advisor = Advisor(file, stays=terminal, plays=speed is not None)

        def made() -> LiveView:
            away = (lambda: None) if link is None else (lambda: link.away_s)
            return LiveView(console, run, advisor=advisor, away=away)

        view = made()
        if terminal and speed is not None:
            view = await _scrubbed(made, console, _past(target, log), speed)
        else:
            if speed is not None:
                beats = play.replay(_past(target, log), speed)
            elif log is not None:
                beats = play.follow(log)
            else:
                beats = play.at_once(_past(target, log))
            if terminal:
                await play.show(view, console, beats, link)
            else:
                await play.tell(view, sys.stdout, beats, say, link)
        if view.outcome:
            say(f"run {run} has finished: {view.outcome}")
            for line in () if terminal else view.scene(view.end_s).next:
                say(f"next: {line}")


async def _scrubbed(
    made: Callable[[], LiveView],
    console: Console,
    past: AsyncIterator[list[Record]],
    speed: float,
) -> LiveView:
    """Play a past log under the hands of whoever watches; of a damaged file, what stands before
    the damage, which is said afterwards."""
    from eventlog.errors import LogDamaged
    from ops.watch.keys import pressed
    from ops.watch.play import scrub
    from ops.watch.player import Player

    records: list[Record] = []
    damage: LogDamaged | None = None
    try:
        async for some in past:
            records += some
    except LogDamaged as error:
        damage = error
    with pressed() as keys:
        view = await scrub(made, console, Player(records, speed), keys)
    if damage:
        raise damage
    return view


def _console() -> Console:
    from ops.terminal import Console

    return Console(markup=False, highlight=False, emoji=False)


@asynccontextmanager
async def _opened(
    target: Path | str, broker: Reach
) -> AsyncIterator[tuple[str, EventLog | None, LinkWatch | None]]:
    """The run's name, its log on the broker and how that answers; None instead for a file."""
    if isinstance(target, Path):
        from eventlog.export import read_header

        yield read_header(target), None, None
        return
    from ops.connect import opened
    from ops.watch.link import LinkWatch

    async with opened(target, broker, "watch") as (log, _, connection):
        yield target, log, LinkWatch(lambda: connection.connected)


def _past(target: Path | str, log: EventLog | None) -> AsyncIterator[list[Record]]:
    """The records that there are."""
    from eventlog.export import read_export, to_end
    from ops.watch.play import batches

    if log is not None:
        return to_end(log)
    assert isinstance(target, Path)
    return batches(read_export(target))
