"""`atoll log verify` and `atoll log anchor`: what a log proves, and what to publish of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops import exits
from ops.output import Reach, broker_option, file_or_run, files, json_option, print_json

if TYPE_CHECKING:
    from ops.copies import Comparison


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@broker_option
def anchor(target: str, broker: Reach) -> None:
    """Print the anchor of a finished run: one line, to be published.

    It is the coordinator's signed word on the whole log before the end. Whoever has it can tell
    any copy of the log from a forged one: `atoll audit FILE --anchor ANCHOR`.
    """
    from ops.anchoring import of_file, of_run

    found = file_or_run(target)
    made = of_file(found) if isinstance(found, Path) else asyncio.run(of_run(found, broker))
    click.echo(made.text())


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.argument("other", metavar="[RUN|FILE]", required=False, shell_complete=files)
@click.option("--mirror", is_flag=True, help="Hold a run against its second copy on the broker.")
@broker_option
@json_option
def verify(target: str, other: str | None, mirror: bool, broker: Reach, as_json: bool) -> None:
    """Check every byte of an exported log, or compare two copies.

    One FILE is checked against its own digests. Two (files, or a run of the broker and a file) are
    compared event by event, as is a run with its --mirror. Exit code 1 where anything is not what
    it should be, naming the first wrong sequence. What events mean is checked by `atoll audit`.
    """
    first = file_or_run(target)
    if other is None and not mirror:
        if not isinstance(first, Path):
            raise click.UsageError(
                f"{target}: no such file; a run is compared: with a FILE, or with its --mirror"
            )
        return _verify(first, as_json)
    if mirror and (other is not None or isinstance(first, Path)):
        raise click.UsageError("--mirror compares one run of the broker with its own copy")
    second = first if other is None else file_or_run(other)
    found = asyncio.run(_compare(first, second, mirror, broker))
    _show(found, target, "its mirror" if mirror else str(other), as_json)
    if found.problem:
        raise click.exceptions.Exit(exits.VIOLATION)
    return None


def _verify(file: Path, as_json: bool) -> None:
    from ops.logfile import verify

    found = verify(file)
    problem = found.problem
    if as_json:
        print_json(
            {
                "file": str(file),
                "run": found.run,
                "ok": problem is None,
                "last_sequence": found.last_sequence,
                "log_digest": found.log_digest,
                "blobs": found.num_blobs,
                "problem": problem and {"sequence": problem.sequence, "what": problem.what},
            }
        )
    elif problem:
        click.echo(f"{file}: {problem}")
    else:
        click.echo(
            f"{file}: run {found.run}, {found.last_sequence:,} events, {found.num_blobs} blobs, "
            f"whole; log digest {found.log_digest}"
        )
    if problem:
        raise click.exceptions.Exit(exits.VIOLATION)


async def _compare(
    first: Path | str, second: Path | str, mirror: bool, broker: Reach
) -> Comparison:
    from contextlib import AsyncExitStack

    from broker.jetstream_log import JetStreamLog
    from eventlog.export import read_header
    from ops.connect import opened
    from ops.copies import compare, of_file, of_log, shortened

    runs = {read_header(one) if isinstance(one, Path) else one for one in (first, second)}
    if len(runs) > 1:
        raise click.UsageError(f"these are logs of different runs: {', '.join(sorted(runs))}")
    async with AsyncExitStack() as stack:
        copies, logs = [], []
        for one in (first, second):
            if isinstance(one, Path):
                copies.append(of_file(one))
                continue
            log, _, connection = await stack.enter_async_context(opened(one, broker, "auditor"))
            if mirror and copies:
                log = await JetStreamLog.mirror(connection, one)
            copies.append(of_log(log))
            logs.append(log)
        found = await compare(runs.pop(), *copies)
        if mirror and found.second > found.first:
            return shortened(found, await logs[0].last_sequence())  # it may have grown meanwhile
        return found


def _show(found: Comparison, first: str, second: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "ok": not found.problem,
                "common": found.common,
                "log_digest": found.log_digest,
                "last_sequences": [found.first, found.second],
                "problem": found.problem or None,
            }
        )
        return
    equal = f"{first} and {second} are equal through {found.common:,}"
    if found.problem:
        click.echo(f"{equal}; {found.problem}")
    elif found.first != found.second:
        ends = {first: found.first, second: found.second}
        longer = max(ends, key=lambda name: ends[name])
        click.echo(f"{equal}, where one ends; {longer} goes on to {ends[longer]:,}")
    else:
        click.echo(f"{equal}, where both end; log digest {found.log_digest}")


COMMANDS = (verify, anchor)
