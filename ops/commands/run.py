"""`atoll run`: create a run from a TOML file, list and show runs, pause, resume and stop one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say
from ops.runkeys import COMMANDS as PROVING

if TYPE_CHECKING:
    from leases.view import View


_KEYS = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def run() -> None:
    """Create, list and show runs; pause, resume and stop one.

    A run trains one model up to its target: one log on the broker, one configuration, one data
    manifest. Sites join and leave it as they like.
    """


for command in PROVING:
    run.add_command(command)


@run.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--data", metavar="DIR", help="The data, in place of the configuration's data.path.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value, such as inner.steps=50; may be given again.",
)
@click.option(
    "--keys",
    type=_KEYS,
    help="Who signs their history: a file of public keys, as `atoll broker keys` prints it.",
)
@broker_option
@json_option
def create(
    config: Path,
    data: str | None,
    overrides: tuple[str, ...],
    keys: Path | None,
    broker: Reach,
    as_json: bool,
) -> None:
    """Create a run from the TOML file CONFIG.

    Its configuration, data manifest and initial parameters are fixed from here on. Whatever is
    wrong with them is said before anything is written. ops/configs/demo.toml in the checkout is an
    example; eventlog/config.py there explains every key.
    """
    from ops.configure import load

    settings = load(config, overrides)  # before what takes seconds to import
    from ops.founding import checked_corpus
    from ops.keyfile import read_keys

    named = read_keys(keys) if keys else ()
    corpus = checked_corpus(settings, config, data)
    event = asyncio.run(_create(broker, settings, corpus, named))
    shape = event.data
    if as_json:
        print_json(
            {
                "run": settings.name,
                "config_digest": event.config_digest,
                "manifest_digest": shape.manifest_digest,
                "num_parameters": event.num_parameters,
                "parameters_digest": event.parameters_digest,
                "epoch_tokens": shape.num_sequences * shape.sequence_tokens,
            }
        )
        return
    click.echo(settings.name)
    tokens = shape.num_sequences * shape.sequence_tokens
    say(f"{event.num_parameters:,} parameters; {tokens:,} tokens an epoch")
    say(f"next: atoll coordinate {settings.name}; atoll site run {settings.name} NAME --data DIR")


async def _create(broker: Reach, settings: Any, corpus: Any, named: Any) -> Any:
    from ops import founding
    from ops.connect import connected

    async with await connected(broker, "operator") as connection:
        return await founding.create(connection, settings, corpus, named)


@run.command("list")
@broker_option
@json_option
def list_(broker: Reach, as_json: bool) -> None:
    """List the runs on the broker, one a line."""
    for row in asyncio.run(_list(broker)):
        if as_json:
            print_json(row)
        else:
            click.echo(
                f"{row['run']:20} {row['state']:9} version {row['version']:>5}  "
                f"{row['tokens']:>14,} tokens  {row['live_sites']} live"
            )


async def _list(broker: Reach) -> list[dict[str, Any]]:
    from broker.jetstream_log import JetStreamLog, list_runs
    from eventlog.errors import RunUnknown
    from leases.view import View
    from ops.connect import connected
    from ops.folded import folded

    rows = []
    async with await connected(broker, "operator") as connection:
        for name in await list_runs(connection):
            log = await JetStreamLog.open(connection, name)
            try:
                async with folded(log) as projection:
                    rows.append(_summary(View(projection.db)))
            except RunUnknown:
                say(f"{name} was never completed: create it again")
            finally:
                await log.close()
    return rows


@run.command()
@click.argument("name", metavar="RUN", callback=run_name)
@broker_option
@json_option
def show(name: str, broker: Reach, as_json: bool) -> None:
    """Show how a run stands, and what it was created with."""
    summary, config = asyncio.run(_show(name, broker))
    if as_json:
        print_json(summary | {"config": config})
        return
    rows = [
        (key.replace("_", " "), f"{value:,}" if isinstance(value, int) else value or "-")
        for key, value in summary.items()
    ]
    rows += _flat(config)
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        click.echo(f"{key:{width}}  {value}")


async def _show(name: str, broker: Reach) -> tuple[dict[str, Any], dict[str, Any]]:
    from leases.view import View
    from ops.connect import opened
    from ops.folded import folded

    async with opened(name, broker) as (log, _, _), folded(log) as projection:
        view = View(projection.db)
        config = view.config().model_dump(mode="json", exclude_none=True)
        config["data"].pop("path", None)
        return _summary(view), config


@run.command()
@click.argument("name", metavar="RUN", callback=run_name)
@click.option(
    "--reason",
    default="the operator stopped it",
    show_default=True,
    help="For the log, and for whoever reads it.",
)
@broker_option
def stop(name: str, reason: str, broker: Reach) -> None:
    """End a run well, before its target.

    Started blocks are finished and merged, then the sites leave and the run has finished. It cannot
    be taken up again: to let it rest, pause it.
    """
    from eventlog.events import RunStopped

    sequence = asyncio.run(_request(name, broker, RunStopped(reason=reason)))
    say(f"asked run {name} to stop (event #{sequence}); see it end: atoll watch {name}")


@run.command()
@click.argument("name", metavar="RUN", callback=run_name)
@click.option(
    "--reason",
    default="the operator paused it",
    show_default=True,
    help="For the log, and for whoever reads it.",
)
@broker_option
def pause(name: str, reason: str, broker: Reach) -> None:
    """Let a run rest: no new blocks and no new rounds.

    Started blocks are finished and delivered, and the open round is merged if it has a delta. Sites
    and coordinator stay, and go on at once when the run is resumed.
    """
    from eventlog.events import RunPaused

    sequence = asyncio.run(_request(name, broker, RunPaused(reason=reason)))
    say(f"paused at sequence {sequence}; go on: atoll run resume {name}")


@run.command()
@click.argument("name", metavar="RUN", callback=run_name)
@click.option(
    "--reason",
    default="the operator resumed it",
    show_default=True,
    help="For the log, and for whoever reads it.",
)
@broker_option
def resume(name: str, reason: str, broker: Reach) -> None:
    """Go on with a paused run."""
    from eventlog.events import RunResumed

    sequence = asyncio.run(_request(name, broker, RunResumed(reason=reason)))
    say(f"resumed at sequence {sequence}; see it go on: atoll watch {name}")


async def _request(name: str, broker: Reach, event: Any) -> int:
    from ops.connect import opened
    from ops.folded import request

    async with opened(name, broker) as (log, _, connection):
        return await request(log, event, connection.key)


def _summary(view: View) -> dict[str, Any]:
    """A run in a row."""
    one = view.run()
    return {
        "run": one.name,
        "state": one.state,
        "reason": one.reason,
        "version": one.version,
        "round": one.round,
        "tokens": one.merged_tokens,
        "live_sites": 0 if one.state == "finished" else one.live,  # none says good-bye then
        "num_parameters": one.num_parameters,
        "coordinator": one.holder,
        "term": one.term,
    }


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        rows += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows
