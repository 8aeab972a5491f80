"""`atoll run fork`: a new run that goes on from a version of another."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say

MAX_NAME = 63


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else run_name(context, parameter, value)


@click.command()
@click.argument("run", callback=run_name)
@click.option(
    "--version",
    type=click.IntRange(0),
    metavar="V",
    help="The version to go on from; by default the newest.",
)
@click.option("--name", callback=_name, metavar="NEW", help="Of the new run; by default RUN-vV.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value, such as inner.lr=5e-4; may be given again.",
)
@broker_option
@json_option
def fork(
    run: str,
    version: int | None,
    name: str | None,
    overrides: tuple[str, ...],
    broker: Reach,
    as_json: bool,
) -> None:
    """Go on from a version of RUN in a new run, otherwise set.

    It takes that version's parameters, and RUN's configuration and data; the outer momentum begins
    at zero. Its target is what is left of RUN's, its schedules go on from where RUN stood, and the
    order of its epochs is drawn anew. Its log says where it comes from, and `atoll audit NEW
    --parent RUN` verifies that. RUN itself is not touched.
    """
    from ops.home import Home
    from ops.signals import clean_up_on_termination

    clean_up_on_termination()
    event = asyncio.run(_fork(run, version, name, overrides, broker))
    new, lineage = event.config["name"], event.lineage
    Home.find().note_fork(run, new)
    if as_json:
        print_json(
            {
                "run": new,
                "config_digest": event.config_digest,
                "lineage": lineage.model_dump(mode="json"),
                "target": event.config["target"],
                "start": event.config["start"],
            }
        )
        return
    click.echo(new)
    say(
        f"goes on from version {lineage.version} of {run}, {lineage.tokens:,} tokens into it "
        f"(parameters {lineage.parameters_digest[:12]})"
    )
    say(f"next: atoll coordinate {new}; atoll site run {new} NAME --data DIR")


async def _fork(
    run: str, version: int | None, name: str | None, overrides: tuple[str, ...], broker: Reach
) -> Any:
    from eventlog.events import OPERATOR
    from leases.view import View
    from ops import forking
    from ops.connect import opened
    from ops.folded import folded

    async with (
        opened(run, broker, moves_blobs=True, writes=OPERATOR) as (log, blobs, connection),
        folded(log) as projection,
    ):
        view = View(projection.db)
        number = view.run().version if version is None else version
        forking.check_version(view, number)
        ending = f"-v{number}"
        new = name or f"{run[: MAX_NAME - len(ending)]}{ending}"
        config = forking.child_config(view, number, new, overrides)
        say(f"rebuilding version {number}")
        return await forking.fork(connection, (view, log, blobs), number, config)
