"""What the demo shows: the live view while the run runs, the outcome when it has ended."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eventlog.log import EventLog
from ops.watch import play
from ops.watch.live import LiveView

Watch = Callable[[EventLog], AsyncGenerator[None, None]]


def watcher(console: Console) -> Watch:
    """The live view on a terminal, plain lines elsewhere; ends when the run has finished."""
    on_terminal = console.is_terminal and console.file.isatty()  # FORCE_COLOR draws into no pipe
    return _drawn(console) if on_terminal else _told(console.file)


def _drawn(console: Console) -> Watch:
    async def watch(log: EventLog) -> AsyncGenerator[None, None]:
        view = LiveView(console, log.run)
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as screen:
            async with aclosing(play.follow(log)) as beats:
                async for beat in beats:
                    view.update(beat.records)
                    screen.update(view.frame(beat.now_s), refresh=True)
                    yield
                    if view.outcome:
                        break

    return watch


def _told(out: IO[str]) -> Watch:
    async def watch(log: EventLog) -> AsyncGenerator[None, None]:
        view = LiveView(Console(file=out), log.run)
        async with aclosing(play.follow(log)) as beats:
            async for beat in beats:
                for told in view.update(beat.records):
                    print(told.line(), file=out, flush=True)
                yield
                if view.outcome:
                    break

    return watch


def summary(console: Console, facts: dict[str, Any], text: str, findings: Any) -> None:
    """The outcome for a person."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows = {
        "held-out perplexity": f"{facts['perplexity_initial']:,.0f} before, "
        f"{facts['perplexity_final']:,.1f} after; the unigram model has "
        f"{facts['perplexity_unigram']:,.0f}",
        "rounds, tokens": f"{facts['rounds']} rounds, {facts['tokens']:,} tokens, "
        f"{facts['epochs_closed']} whole epoch{'s' * (facts['epochs_closed'] != 1)}",
        "sites": f"{facts['sites']}; {facts['departures']} departed, "
        f"{facts['late_joins']} admitted in mid-run, {facts['blocks_reclaimed']} blocks reclaimed",
        "audit": _verdict(findings),
        "time": f"{facts['seconds']:.0f} s",
    }
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    console.print()
    console.print(table)
    console.print(Text("the model writes", style="bold"))
    console.print(Text(text, style="dim"), highlight=False)


def _verdict(findings: Any) -> str:
    if findings.ok:
        return (
            f"holds: {findings.events:,} events, {findings.versions} versions, "
            f"{len(findings.void)} void"
        )
    first = findings.violations[0]
    return f"FAILS at sequence {first.sequence}: {first.what}"


def next_steps(console: Console, folder: Path, log_file: Path, report: str | None) -> None:
    """What the demo left, and what to try with it."""
    atoll, log_file, folder = map(
        _from_here, (Path(sys.executable).with_name("atoll"), log_file, folder)
    )
    lines = (
        (f"{atoll} audit {log_file} --deep", "recompute every version from the deltas"),
        (f"{atoll} watch {log_file} --replay --speed 10", "see it happen again"),
        (f"{atoll} log show {log_file} | less", "read what happened"),
        (f"ATOLL_HOME={folder} {atoll} broker serve", "serve the run again, for run show, eval"),
    )
    left = [("the exported log", str(log_file))]
    left += [("the report, for a browser", str(_from_here(Path(report))))] if report else []
    for what, file in left:
        console.print(Text(what, style="bold"))
        console.print(Text(f"  {file}"), soft_wrap=True, highlight=False)
    console.print(Text("try next", style="bold"))
    for command, why in lines:
        console.print(Text(f"  {command}"), soft_wrap=True, highlight=False)
        console.print(Text(f"      {why}", style="dim"), highlight=False)


def _from_here(path: Path) -> Path:
    """The path as it is shortest to type in the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
