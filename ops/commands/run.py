"""`atoll run`: create a run from a TOML file, list and show runs, pause, resume and stop one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say
from ops.runkeys import COMMANDS as PROVING
from ops.runs.create import create
from ops.runs.fork import fork

if TYPE_CHECKING:
    from leases.view import View


@click.group()
def run() -> None:
    """Create, list, show and fork runs; pause, resume and stop one.

    A run trains one model up to its target: one log on the broker, one configuration, one data
    manifest. Sites join and leave it as they like.
    """


for command in (create, fork, *PROVING):
    run.add_command(command)


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
    goodput = summary.pop("goodput")
    rows = [
        (key.replace("_", " "), f"{value:,}" if isinstance(value, int) else value or "-")
        for key, value in _flat(summary)
    ]
    rows += [*_effort(goodput), *_flat(config)]
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        click.echo(f"{key:{width}}  {value}")


def _effort(goodput: dict[str, Any]) -> list[tuple[str, str]]:
    """What the time went into, by site, in a line each."""
    rows = []
    for one in goodput["sites"]:
        lost = sorted(one["lost_share"].items(), key=lambda item: -item[1])
        names = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in lost if share)
        mfu = "" if one["mfu"] is None else f", {one['mfu']:.1%} of the devices' peak"
        said = (
            f"{one['device_hours']:.2f} device-hours, {one['tokens_per_s']:,.0f} tokens/s{mfu}, "
            f"training {one['training_share']:.1%}"
        )
        rows.append((f"goodput of {one['site']}", f"{said}; {names}" if names else said))
    return rows


async def _show(name: str, broker: Reach) -> tuple[dict[str, Any], dict[str, Any]]:
    from leases.goodput import Goodput
    from leases.view import View
    from ops.connect import opened
    from ops.folded import entries, folded

    goodput = Goodput()
    async with opened(name, broker) as (log, _, _), folded(log) as projection:
        async for entry, void in entries(log):
            goodput.see(entry, void)
        view = View(projection.db)
        config = view.config().model_dump(mode="json", exclude_none=True)
        config["data"].pop("path", None)
        return _summary(view) | _more(view) | {"goodput": goodput.as_json()}, config


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
    from eventlog.events import OPERATOR
    from ops.connect import opened
    from ops.folded import request

    async with opened(name, broker, writes=OPERATOR) as (log, _, connection):
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


def _more(view: View) -> dict[str, Any]:
    """What only `run show` says of it: where it comes from, and whether it has diverged."""
    from leases.divergence import diverged
    from leases.evaluators import evaluations
    from leases.forks import fork_options, lineage

    come, found, newest = lineage(view), diverged(view), evaluations(view, 1)
    name = view.run().name
    return {
        "lineage": come.model_dump(mode="json") if come else None,
        "evaluation": newest[0]._asdict() if newest else None,
        "diverged": found.why if found else None,
        "next": f"atoll run fork {name} {fork_options(view, found)}" if found else None,
    }


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        rows += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows
