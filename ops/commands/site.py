"""`atoll site`: take part in a run with this machine."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import click

from ops.output import broker_option, run_name, say

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def site() -> None:
    """Take part in a run.

    A site is one job slot at one centre: a hub that dials out to the broker, and the trainer that
    it starts. Jobs that follow each other under one name are one site.
    """


@site.command("run")
@click.argument("run", callback=run_name)
@click.argument("name")
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The token files that `atoll data build` wrote here.",
)
@click.option(
    "--threads", default=1, show_default=True, metavar="N", help="Threads of the trainer."
)
@click.option(
    "--walltime", metavar="TIME", help="When this job ends from now on: 90m, 4h, 02:30:00, 1-12:00."
)
@broker_option
def run_(
    run: str, name: str, data: Path, threads: int, walltime: str | None, broker: str | None
) -> int:
    """Train for RUN as the site NAME until the run ends or this site leaves.

    Ctrl-C, SIGTERM, SIGUSR1 and a walltime that nears its end all end the block in work, deliver
    what is trained and depart; a second signal ends at once. Exit code 75 means that it may be
    started again, 6 that it must not.
    """
    from eventlog.log import NAME
    from sitehub.corpus import Corpus

    if not NAME.match(name):
        raise click.UsageError(f"{name!r} is no site name: lower-case letters, digits, hyphens")
    if threads < 1:
        raise click.UsageError("--threads: at least 1")
    walltime_s = None if walltime is None else seconds(walltime)
    Corpus.open(data, verify="full")
    return asyncio.run(_run(run, name, data, threads, walltime_s, broker))


async def _run(
    run: str, name: str, data: Path, threads: int, walltime_s: float | None, broker: str | None
) -> int:
    from ops.connect import opened
    from ops.home import Home
    from ops.signals import on_request
    from sitehub.hub import Hub

    async with opened(run, broker, f"site-{name}") as (log, blobs, _):
        hub = Hub(
            log,
            blobs,
            name,
            Home.find().site(run, name),
            data.absolute(),
            num_threads=threads,
            walltime_end=None if walltime_s is None else time.monotonic() + walltime_s,
            say=lambda text: say(f"{name}: {text}"),
        )
        on_request(hub.ask_to_leave)
        return await hub.run()


def seconds(text: str) -> float:
    """A walltime as Slurm or a person writes it: 90m, 4h, MM:SS, HH:MM:SS, D-HH:MM. Raises
    click.UsageError."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return float(match[1]) * _UNITS[match[2]]
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text):
        days, first, second, third = (int(part) if part else 0 for part in match.groups())
        if match[1] is not None:  # D-HH[:MM[:SS]]
            return days * 86400 + first * 3600 + second * 60 + third
        if match[4] is not None:
            return first * 3600 + second * 60 + third
        if match[3] is not None:
            return first * 60 + second
    raise click.UsageError(f"--walltime {text}: write 90m, 4h, 02:30:00 or 1-12:00")
