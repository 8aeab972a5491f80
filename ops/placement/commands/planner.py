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

from ops.output import broker_option, json_option, print_json, run_name, say, sites_option

if TYPE_CHECKING:
    from ops.placement.sites import Sites


@click.command()
@click.argument("run", metavar="RUN", callback=run_name)
@sites_option
@click.option("--once", is_flag=True, help="Print the plan as things stand; write nothing.")
@broker_option
def planner(run: str, sites: Path, once: bool, broker: str | None) -> int:
    """Plan where RUN stands in queues, or stand by until its planner is gone.

    It reads the log and writes plans; the agents of the sites carry them out. Any number may run:
    one plans. Ends when the run has finished.
    """
    from ops.placement.sites import load

    return asyncio.run(_planner(run, load(sites), once, broker))


async def _planner(run: str, sites: Sites, once: bool, broker: str | None) -> int:
    from eventlog.projector import Projection
    from leases.table import LeaseTable
    from ops.connect import opened
    from ops.placement.planner import Planner
    from ops.signals import on_request

    async with opened(run, broker, "planner") as (log, _, _):
        with Projection(":memory:", [LeaseTable()], run) as projection, _name(run) as holder:
            made = Planner(log, projection, sites, holder, say=say)
            if once:
                for action in await made.look():
                    print_json(action)
                return 0
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
def why(run: str, as_json: bool, broker: str | None) -> None:
    """Tell which sites, which shapes, the waits expected, the last error, the next step.

    All of it is in the log: it needs no planner, no agent and no sites file.
    """
    said = asyncio.run(_why(run, broker))
    if as_json:
        print_json(said)
        return
    from ops.placement.why import lines

    for line in lines(said):
        click.echo(line)


async def _why(run: str, broker: str | None) -> dict[str, Any]:
    import time

    from ops.connect import opened
    from ops.folded import folded
    from ops.placement.why import account

    async with opened(run, broker) as (log, _, _), folded(log) as projection:
        return account(projection.db, run, time.time())
