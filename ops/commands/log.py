"""`atoll log`: look at, follow, export, import and verify the log of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.output import (
    Reach,
    broker_option,
    file_or_run,
    files,
    json_option,
    print_json,
    run_name,
    say,
)
from ops.proving import COMMANDS as PROVING

if TYPE_CHECKING:
    from eventlog.chain import Record
    from eventlog.export import ExportSummary

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def log() -> None:
    """Show, follow, export, import and verify logs.

    A FILE is an exported log. It needs no broker and no run: whatever is in it can be shown,
    verified and audited anywhere.
    """


for command in PROVING:
    log.add_command(command)


@log.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option(
    "--after", default=0, type=click.IntRange(0), metavar="N", help="Only events behind sequence N."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Only this type, such as round.committed; may be given again.",
)
@click.option("--source", "sources", multiple=True, help="Only this source, such as site.a.")
@broker_option
@json_option
def show(
    target: str,
    after: int,
    types: tuple[str, ...],
    sources: tuple[str, ...],
    broker: Reach,
    as_json: bool,
) -> None:
    """Print the events of a run, or of an exported log, one a line.

    Of a damaged file, every event before the damage is printed; then it ends with exit code 3.
    """
    printer = _Printer(as_json, after, types, sources)
    found = file_or_run(target)
    if isinstance(found, Path):
        from eventlog.export import read_export

        printer.print(read_export(found))
    else:
        asyncio.run(_show_run(found, broker, printer))
    if not printer.num_printed:
        say("no event matches" + _nearest(types))


def _nearest(types: Iterable[str]) -> str:
    """Event types that may have been meant, for a person who wrote others."""
    from difflib import get_close_matches

    from eventlog.events import EVENTS

    spelt = {kind.__name__.lower(): name for name, kind in EVENTS.items()} | {n: n for n in EVENTS}
    wrong = [one for one in types if one not in EVENTS]
    near = [get_close_matches(one.lower(), spelt, n=1) for one in wrong]
    meant = sorted({spelt[match[0]] for match in near if match})
    return f"; did you mean --type {' --type '.join(meant)}?" if meant else ""


async def _show_run(run: str, broker: Reach, printer: _Printer) -> None:
    from eventlog.export import to_end
    from ops.connect import opened

    async with opened(run, broker) as (log, _, _):
        if printer.after >= await log.last_sequence():
            return  # to have read further than a log goes would be damage
        async for records in to_end(log, printer.after):
            printer.print(records)


@log.command()
@click.argument("run", callback=run_name)
@click.option(
    "--lines",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Begin N events back.",
)
@broker_option
@json_option
def tail(run: str, lines: int, broker: Reach, as_json: bool) -> None:
    """Print the events of a run as they come, until Ctrl-C.

    An outage of the broker is survived: it goes on where it was.
    """
    asyncio.run(_tail(run, lines, broker, as_json))


async def _tail(run: str, lines: int, broker: Reach, as_json: bool) -> None:
    from ops.connect import opened

    async with opened(run, broker) as (log, _, _):
        after = max(0, await log.last_sequence() - lines)
        printer = _Printer(as_json)
        async for records in log.follow(after):
            printer.print(records)


@log.command()
@click.argument("run", callback=run_name)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default below ATOLL_HOME.",
)
@click.option("--blobs", is_flag=True, help="With parameters, deltas, updates and snapshots.")
@click.option("--bundle", is_flag=True, help="One archive for a reviewer, with how to verify it.")
@click.option("--data", metavar="DIR", help="With --bundle: training data, whose manifest goes in.")
@broker_option
@json_option
def export(
    run: str,
    output: Path | None,
    blobs: bool,
    bundle: bool,
    data: str | None,
    broker: Reach,
    as_json: bool,
) -> None:
    """Write a run's log to one file, each event chained by digest.

    With --blobs the file can be audited down to every version's parameters. With --bundle it is
    put into an archive (.tar) together with anchor, manifest, versions of the code and of all it
    stands on, and one command that verifies it.
    """
    from ops.home import Home

    if data and not bundle:
        raise click.UsageError("--data goes with --bundle")
    kept = Home.find().export(run)
    target = output or (kept.with_suffix(".tar") if bundle else kept)
    if bundle:
        summary = asyncio.run(_bundle(run, target, blobs, data, broker))
    else:
        summary = asyncio.run(_export(run, target, blobs, broker))
    if as_json:
        print_json(
            {
                "run": summary.run,
                "log_file": str(target),
                "events": summary.num_records,
                "last_sequence": summary.last_sequence,
                "log_digest": summary.log_digest,
                "blobs": summary.num_blobs,
                "bytes": summary.num_bytes,
            }
        )
    else:
        held = f"{summary.num_records:,} events, {summary.num_blobs} blobs"
        say(f"{held}, {summary.num_bytes:,} bytes")
        click.echo(target)


async def _bundle(
    run: str, target: Path, with_blobs: bool, data: str | None, broker: Reach
) -> ExportSummary:
    from tempfile import TemporaryDirectory

    from ops.bundle import write_bundle

    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".bundle-", dir=target.parent) as folder:
        log_file = Path(folder) / "log.atoll"
        summary = await _export(run, log_file, with_blobs, broker)
        write_bundle(log_file, target, Path(data) if data else None)
    return summary


async def _export(run: str, target: Path, with_blobs: bool, broker: Reach) -> ExportSummary:
    from ops.connect import opened
    from ops.logfile import export

    async with opened(run, broker, moves_blobs=with_blobs) as (log, blobs, _):
        return await export(log, blobs if with_blobs else None, target)


@log.command("import")
@click.argument("file", type=_FILE)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep it; by default below ATOLL_HOME.",
)
@json_option
def import_(file: Path, folder: Path | None, as_json: bool) -> None:
    """Verify an exported log and keep it here.

    Its blobs are kept beside it. It stays the same history: sequences, times and digests are those
    of the run it was exported from. It cannot be continued.
    """
    from eventlog.export import read_header
    from ops.home import Home
    from ops.logfile import import_file

    run = read_header(file)
    target = import_file(file, folder or Home.find().imported(run))
    if as_json:
        print_json({"run": run, "log_file": str(target), "blobs": str(target.parent / "blobs")})
    else:
        click.echo(target)


class _Printer:
    """Prints those records that were asked for."""

    def __init__(
        self,
        as_json: bool,
        after: int = 0,
        types: Iterable[str] = (),
        sources: Iterable[str] = (),
    ) -> None:
        self.after, self.num_printed = after, 0
        self._as_json, self._types, self._sources = as_json, set(types), set(sources)

    def print(self, records: Iterable[Record]) -> None:
        """One line a record."""
        from eventlog.codec import decode
        from ops import describe

        for record in records:
            if record.sequence <= self.after:
                continue
            if self._sources and record.subject not in self._sources:
                continue
            entry = decode(record)
            if self._types and (entry.envelope is None or entry.envelope.type not in self._types):
                continue
            self.num_printed += 1
            if self._as_json:
                print_json(describe.as_json(entry))
            else:
                click.echo(describe.as_line(entry))
