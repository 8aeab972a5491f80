"""`atoll watch`: the live view of a run, or of a log that is over."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.output import broker_option, file_or_run, json_option, print_json, say

if TYPE_CHECKING:
    from eventlog.chain import Record
    from eventlog.log import EventLog
    from ops.watch.live import LiveView


@click.command()
@click.argument("target", metavar="RUN|FILE")
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
    target: str, once: bool, replay: bool, speed: float | None, broker: str | None, as_json: bool
) -> None:
    """Watch a run: its sites, blocks and events, and what it waits for and until when.

    Ends when the run has finished. Where stdout is no terminal: one line an event. Of a FILE, an
    exported log, the end is shown. --json implies --once.
    """
    if replay and (once or as_json):
        raise click.UsageError("--replay plays a log; --once and --json show how it stands")
    if speed is not None and not replay:
        raise click.UsageError("--speed says how fast to play: add --replay")
    found = file_or_run(target)
    watcher = _Watcher(found, broker, as_json)
    if as_json or once:
        asyncio.run(watcher.once())
    else:
        asyncio.run(watcher.live(speed or 1.0 if replay else None))


class _Watcher:
    """One look at a run or a file."""

    def __init__(self, target: Path | str, broker: str | None, as_json: bool) -> None:
        from rich.console import Console

        self._target, self._broker, self._as_json = target, broker, as_json
        self._console = Console(markup=False, highlight=False, emoji=False)

    async def once(self) -> None:
        """Print one picture, also of a damaged file up to the damage."""
        async with self._opened() as (view, log):
            try:
                async for records in self._past(log):
                    view.update(records)
            finally:
                self._print(view, log)

    async def live(self, speed: float | None) -> None:
        """Show or tell what happens; speed: of a replay, None for what is and comes."""
        from ops.watch import play

        async with self._opened() as (view, log):
            if speed is not None:
                beats = play.replay(self._past(log), speed)
            elif log is not None:
                beats = play.follow(log)
            else:
                beats = play.at_once(self._past(log))
            if self._console.is_terminal:
                await play.show(view, self._console, beats)
            else:
                await play.tell(view, sys.stdout, beats)
            if view.outcome:
                say(f"the run has finished: {view.outcome}")

    def _print(self, view: LiveView, log: EventLog | None) -> None:
        now_s = view.end_s if log is None else None
        if self._as_json:
            print_json(view.scene(now_s).as_json())
        else:
            self._console.print(view.frame(now_s))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[LiveView, EventLog | None]]:
        """A view, and the log of a run; None instead of it for a file."""
        from ops.watch.live import LiveView

        if isinstance(self._target, Path):
            from eventlog.export import read_header

            yield LiveView(self._console, read_header(self._target), fit=False), None
            return
        from ops.connect import opened

        async with opened(self._target, self._broker) as (log, _):
            yield LiveView(self._console, self._target), log

    def _past(self, log: EventLog | None) -> AsyncIterator[list[Record]]:
        """The records that there are."""
        from eventlog.export import read_export, to_end
        from ops.watch.play import batches

        if log is not None:
            return to_end(log)
        assert isinstance(self._target, Path)
        return batches(read_export(self._target))
