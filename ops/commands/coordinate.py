"""`atoll coordinate`: the coordinator of a run, or a standby of it."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import click

from ops.output import Reach, broker_option, run_name, say
from ops.rates import max_rate_option, pace_of

if TYPE_CHECKING:
    from eventlog.projector import Projection
    from ops.home import Home


@click.command()
@click.argument("run", callback=run_name)
@max_rate_option
@broker_option
def coordinate(run: str, max_rate: float | None, broker: Reach) -> int:
    """Coordinate RUN, or stand by until its coordinator is gone.

    Any number may run, here or elsewhere: the log elects one. It needs no state of its own and can
    be killed at any time; another goes on from the log. Ends when the run has finished.
    """
    return asyncio.run(_coordinate(run, max_rate, broker))


async def _coordinate(run: str, max_rate: float | None, broker: Reach) -> int:
    from functools import partial

    from eventlog.progress import SpokenBlobs
    from eventlog.writer import Writer
    from ops.connect import opened
    from ops.home import Home
    from ops.signals import on_request
    from outer.coordinator import Coordinator
    from outer.workshop import Workshop

    home = Home.find()
    name, pace = f"coordinator-{os.getpid()}", pace_of(max_rate)
    async with opened(run, broker, name, pace, moves_blobs=True) as (log, blobs, connection):
        projection, number = _projection(home, run)
        with projection:
            folder = home.coordinator(run, number)
            coordinator = Coordinator(
                log,
                projection,
                Workshop(SpokenBlobs(blobs, say), folder, say=say),
                f"{socket.gethostname()}-{os.getpid()}",
                breaks=lambda: connection.num_breaks,
                say=say,
                pen=partial(Writer, key=connection.key),
            )
            work = asyncio.create_task(coordinator.run())
            left: list[int] = []

            def leave(_: str, reason: str, exit_code: int) -> None:
                say(f"{reason}; the run goes on with another coordinator")
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


def _projection(home: Home, run: str) -> tuple[Projection, int]:
    """A fold of our own: coordinators on one machine do not share theirs."""
    from eventlog.errors import LockHeld
    from eventlog.projector import Projection
    from leases.table import LeaseTable

    number = 1
    while True:
        try:
            path = home.projection(run, f"coordinator-{number}")
            return Projection(path, [LeaseTable()], run), number
        except LockHeld:
            number += 1
