"""`atoll coordinate`: the coordinator of a run, or a standby of it."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.output import Reach, broker_option, run_name, say
from ops.rates import max_rate_option, pace_of

if TYPE_CHECKING:
    from eventlog.projector import Projection
    from ops.alarm.settings import Settings
    from ops.alarm.watchman import Watchman
    from ops.home import Home
    from outer.coordinator import Coordinator


@click.command()
@click.argument("run", callback=run_name)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="ATOLL_COORDINATOR",
    help="Settings of this coordinator (TOML): metrics, alerts [env: ATOLL_COORDINATOR].",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus there, by default on 127.0.0.1; 0 is a free port.",
)
@max_rate_option
@broker_option
def coordinate(
    run: str, config: Path | None, metrics: str | None, max_rate: float | None, broker: Reach
) -> int:
    """Coordinate RUN, or stand by until its coordinator is gone.

    Any number may run, here or elsewhere: the log elects one. It needs no state of its own and can
    be killed at any time; another goes on from the log. Ends when the run has finished. Metrics
    need the extra `metrics`.
    """
    from ops.alarm import settings

    return asyncio.run(_coordinate(run, settings.load(config, metrics), max_rate, broker))


async def _coordinate(run: str, settings: Settings, max_rate: float | None, broker: Reach) -> int:
    from functools import partial

    from eventlog.events import COORDINATOR
    from eventlog.progress import SpokenBlobs
    from eventlog.writer import Writer
    from ops.alarm.watchman import Watchman
    from ops.connect import opened
    from ops.home import Home
    from ops.watch.link import LinkWatch
    from outer.coordinator import Coordinator
    from outer.workshop import Workshop

    home = Home.find()
    name, pace = f"coordinator-{os.getpid()}", pace_of(max_rate)
    async with opened(run, broker, name, pace, moves_blobs=True, writes=COORDINATOR) as (
        log,
        blobs,
        connection,
    ):
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
                software=_versions(),
            )
            watchman = Watchman(
                settings,
                projection,
                LinkWatch(lambda: connection.connected),
                lambda: coordinator.leads,
                lambda: connection.num_breaks,
                folder,
                say,
            )
            left = await _work(coordinator, watchman)
    if left is None:
        say(f"run {run} has finished")
    return left or 0


async def _work(coordinator: Coordinator, watchman: Watchman) -> int | None:
    """Coordinate under the eyes of a watchman until the run has finished (None) or a signal asks
    to leave (the exit code)."""
    from ops.signals import on_request

    watchman.open()
    work = asyncio.create_task(coordinator.run())
    watch = asyncio.create_task(watchman.run())
    watch.add_done_callback(_say_end)
    left: list[int] = []

    def leave(_: str, reason: str, exit_code: int) -> None:
        say(f"{reason}; the run goes on with another coordinator")
        left.append(exit_code)
        work.cancel()

    on_request(leave)
    try:
        await work
        await watchman.last_words()
        return None
    except asyncio.CancelledError:
        if not left:
            raise
        return left[0]
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await watchman.close()


def _say_end(watch: asyncio.Task[None]) -> None:
    """A watchman that fails is no reason to stop the run; it is said."""
    if not watch.cancelled() and (error := watch.exception()) is not None:
        say(f"metrics and alerts have ended: {error!r}")


def _versions() -> dict[str, str]:
    """What coordinates, for the log."""
    from importlib import metadata

    names = ("atoll", "numpy", "torch")
    return {"python": platform.python_version()} | {one: metadata.version(one) for one in names}


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
