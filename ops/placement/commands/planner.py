"""`atoll place planner` and `why`: where a run stands in queues, and for what reason."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say, sites_option

if TYPE_CHECKING:
    from ops.placement.sites import Sites


@click.command()
@click.argument("run", metavar="RUN", callback=run_name)
@sites_option
@broker_option
def planner(run: str, sites: Path, broker: Reach) -> int:
    """Plan where RUN stands in queues, or stand by.

    It reads the log and writes plans; the agents of the sites carry them out. Any number may run:
    one plans. Ends when the run has finished.
    """
    from ops.placement.sites import load

    return asyncio.run(_planner(run, load(sites), broker))


async def _planner(run: str, sites: Sites, broker: Reach) -> int:
    from eventlog.projector import Projection
    from leases.table import LeaseTable
    from ops.connect import opened
    from ops.placement.planner import Planner
    from ops.signals import on_request

    async with opened(run, broker, "planner") as (log, _, _):
        with Projection(":memory:", [LeaseTable()], run) as projection, _name(run) as holder:
            made = Planner(log, projection, sites, holder, say=say)
            work = asyncio.create_task(made.run())
            left: list[int] = []

            def leave(_: str, reason: str, exit_code: int) -> None:
                say(f"{reason}; agents go by the last plan until it is old")
                left.append(exit_code)
                work.cancel()

            on_request(leave)
            try:
                await work
            except asyncio.CancelledError:
                if not left:
                    raise
                return left[0]
    say(f"run {run} has finished")
    return 0


@click.command("plan")
@click.argument("run", metavar="RUN", callback=run_name)
@sites_option
@json_option
@broker_option
def plan_(run: str, sites: Path, as_json: bool, broker: Reach) -> None:
    """Print what would be planned for RUN as things stand.

    Nothing is written: a sites file can be tried before a planner reads it. It knows no more of the
    queues than the agents have told the log.
    """
    from ops.placement.sites import load

    for action in asyncio.run(_plan(run, load(sites), broker)):
        if as_json:
            print_json(action)
        else:
            shape = " {} nodes for {} s".format(*action["shape"]) if "shape" in action else ""
            click.echo(f"{action['site']}: {action['do']}{shape}: {action.get('reason', '')}")


async def _plan(run: str, sites: Sites, broker: Reach) -> list[dict[str, Any]]:
    from eventlog.projector import Projection
    from leases.table import LeaseTable
    from ops.connect import opened
    from ops.placement.planner import Planner

    async with opened(run, broker, "planner") as (log, _, _):
        with Projection(":memory:", [LeaseTable()], run) as projection:
            return await Planner(log, projection, sites, "nobody").look()


@contextmanager
def _name(run: str) -> Iterator[str]:
    """What this planner is called in the log. The first one of a home is called after the home: so
    it goes on at once when it is started again, where another one would wait until it is sure."""
    from eventlog.errors import LockHeld
    from eventlog.locks import exclusive
    from ops.home import Home

    place = Home.find().root / "placement"
    place.mkdir(parents=True, exist_ok=True)
    try:
        lock = exclusive(place / f"planner-{run}", f"the planner of {run}")
    except LockHeld:
        yield f"{socket.gethostname()}-{os.getpid()}"
        return
    try:
        yield f"{socket.gethostname()}:{place.parent}"[-200:]
    finally:
        lock.release()


@click.command()
@click.argument("run", metavar="RUN", callback=run_name)
@json_option
@broker_option
def why(run: str, as_json: bool, broker: Reach) -> None:
    """Tell where RUN stands in queues, why, and what is next.

    Sites, shapes, the waits expected, the last error, the next step. All of it is in
    the log: it needs no planner, no agent and no sites file.
    """
    said = asyncio.run(_why(run, broker))
    if as_json:
        print_json(said)
        return
    from ops.placement.why import lines

    for line in lines(said):
        click.echo(line)


async def _why(run: str, broker: Reach) -> dict[str, Any]:
    import time

    from ops.connect import opened
    from ops.folded import folded
    from ops.placement.why import account

    async with opened(run, broker) as (log, _, _), folded(log) as projection:
        return account(projection.db, run, time.time())
