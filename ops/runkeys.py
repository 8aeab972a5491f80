"""`atoll run keys` and `atoll run mirror`: who signs a run's history, and its second copy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, run_name, say

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("name", metavar="RUN", callback=run_name)
@click.argument("file", type=_FILE)
@click.option("--drop", is_flag=True, help="From here on these may not sign any more.")
@click.option(
    "--reason",
    default="the operator named them",
    show_default=True,
    help="For the log, and for whoever reads it.",
)
@broker_option
def keys(name: str, file: Path, drop: bool, reason: str, broker: Reach) -> None:
    """Name the keys that sign RUN's history.

    FILE is what `atoll broker keys` printed. From here on a delta, commit or end on a subject that
    has a key counts only with its signature.
    """
    from eventlog.events import KeysNamed
    from ops.keyfile import read_keys

    found = read_keys(file)
    named, dropped = ((), found) if drop else (found, ())
    event = KeysNamed(keys=named, dropped=dropped, reason=reason)
    sequence = asyncio.run(_request(name, broker, event))
    say(f"{len(found)} keys {'dropped' if drop else 'named'} at sequence {sequence}")


@click.command()
@click.argument("name", metavar="RUN", callback=run_name)
@click.option(
    "--tag", "tags", multiple=True, help="Of the servers of a cluster that may hold the copy."
)
@broker_option
def mirror(name: str, tags: tuple[str, ...], broker: Reach) -> None:
    """Keep a second copy of RUN's log on its broker.

    The broker copies each event as it comes, with sequence and time. Compare the two with `atoll
    log verify RUN --mirror`.
    """
    asyncio.run(_mirror(name, tags, broker))
    say(f"a second copy of run {name} is kept; compare: atoll log verify {name} --mirror")


async def _mirror(name: str, tags: tuple[str, ...], broker: Reach) -> None:
    from broker.jetstream_log import JetStreamLog
    from ops.connect import opened

    async with opened(name, broker) as (_, _, connection):
        await (await JetStreamLog.mirror(connection, name, create=True, tags=tags)).close()


async def _request(name: str, broker: Reach, event: Any) -> int:
    from eventlog.events import OPERATOR
    from ops.connect import opened
    from ops.folded import request

    async with opened(name, broker, writes=OPERATOR) as (log, _, connection):
        return await request(log, event, connection.key)


COMMANDS = (keys, mirror)
