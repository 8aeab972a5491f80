"""`atoll site`: take part in a run with this machine."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import click

from ops.output import broker_option, run_name, say, sites_option
from ops.rates import max_rate_option, pace_of

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
    "--walltime",
    metavar="TIME",
    help="When this job ends from now on: 90m, 4h, 02:30:00, 1-12:00; or `job`: ask the Slurm job "
    "that this is.",
)
@click.option(
    "--successor", is_flag=True, help="Take over from the job that is this site until it departs."
)
@max_rate_option
@broker_option
def run_(
    run: str,
    name: str,
    data: Path,
    threads: int,
    walltime: str | None,
    successor: bool,
    max_rate: float | None,
    broker: str | None,
) -> int:
    """Train for RUN as the site NAME.

    It ends with the run, or when this site leaves. Ctrl-C, SIGTERM, SIGUSR1 and a walltime that
    nears its end all end the block in work, deliver what is trained and depart; a second signal
    ends at once. Exit code 75 means that it may be started again, 6 that it must not.

    A name that lives is refused as a twin (75), unless --successor says that this job follows that
    one: then it waits, with the newest version loaded, until the other departs. It needs another
    machine, or another ATOLL_HOME, than the job that it follows.
    """
    from eventlog.log import NAME
    from sitehub.corpus import Corpus

    if not NAME.match(name):
        raise click.UsageError(f"{name!r} is no site name: lower-case letters, digits, hyphens")
    if threads < 1:
        raise click.UsageError("--threads: at least 1")
    walltime_s = None if walltime is None else _granted_s(walltime)
    Corpus.open(data, verify="full")
    return asyncio.run(_run(run, name, data, threads, walltime_s, successor, max_rate, broker))


async def _run(
    run: str,
    name: str,
    data: Path,
    threads: int,
    walltime_s: float | None,
    successor: bool,
    max_rate: float | None,
    broker: str | None,
) -> int:
    from eventlog.progress import SpokenBlobs
    from ops.connect import opened
    from ops.home import Home
    from ops.signals import on_request
    from sitehub.hub import Hub

    def tell(text: str) -> None:
        say(f"{name}: {text}")

    pace = pace_of(max_rate)
    async with opened(run, broker, f"site-{name}", pace, moves_blobs=True) as (log, blobs, _):
        hub = Hub(
            log,
            SpokenBlobs(blobs, tell),
            name,
            Home.find().site(run, name),
            data.absolute(),
            num_threads=threads,
            walltime_end=None if walltime_s is None else time.monotonic() + walltime_s,
            successor=successor,
            max_rate=max_rate,
            say=tell,
        )
        on_request(hub.ask_to_leave)
        return await hub.run()


@site.command()
@click.argument("run", metavar="RUN", callback=run_name)
@click.argument("name")
@click.option(
    "--reason",
    default="the operator drained it",
    show_default=True,
    help="For the log, and for whoever reads it.",
)
@broker_option
def drain(run: str, name: str, reason: str, broker: str | None) -> None:
    """Ask the site NAME to leave RUN well.

    It ends its block, delivers what is trained and departs; its process ends with exit code 0.
    """
    from eventlog.events import DrainRequested
    from eventlog.log import NAME

    if not NAME.match(name):
        raise click.UsageError(f"{name!r} is no site name: lower-case letters, digits, hyphens")
    sequence = asyncio.run(_request(run, broker, DrainRequested(site=name, reason=reason)))
    say(f"asked for at sequence {sequence}; watch it leave: atoll watch {run}")


async def _request(run: str, broker: str | None, event: Any) -> int:
    from ops.connect import opened
    from ops.folded import request

    async with opened(run, broker) as (log, _, _):
        return await request(log, event)


@site.command()
@click.argument("name")
@sites_option
@click.option("--run", default="run", show_default=True, callback=run_name, help="For which run.")
@click.option("--nodes", type=click.IntRange(1), help="By default those of the largest shape.")
@click.option("--walltime", metavar="TIME", help="By default that of the largest shape.")
@click.option("--successor", is_flag=True, help="As a job that follows another one.")
def script(
    name: str, sites: Path, run: str, nodes: int | None, walltime: str | None, successor: bool
) -> None:
    """Print the batch script that an agent would submit for the site NAME.

    Rendered from the site's template; nothing is submitted. `sbatch --test-only` takes it as it is.
    """
    from ops.home import Home
    from ops.placement import script as scripts
    from ops.placement.shapes import Shape
    from ops.placement.sites import load

    one = load(sites).named(name)
    largest = max(one.profile().shapes, key=lambda shape: shape.node_hours)
    shape = Shape(
        nodes or largest.nodes, round(seconds(walltime)) if walltime else largest.walltime_s
    )
    ask = scripts.Ask(run, scripts.job_name(run, name, 0, run), shape, successor)
    work = Home.find().root / "placement" / run / name
    click.echo(scripts.render(one, ask, sites.absolute().parent, work), nl=False)


def _granted_s(text: str) -> float:
    """The walltime of an option: a time, or that of the job this is."""
    if text != "job":
        return seconds(text)
    import os

    from ops.placement.granted import left_s

    return max(1.0, left_s(os.environ, time.time()))


def seconds(text: str) -> float:
    """A walltime as Slurm or a person writes it: 90m, 4h, MM:SS, HH:MM:SS, D-HH:MM. Raises
    click.UsageError, for none at all too."""
    found_s = _read(text)
    if found_s is None:
        raise click.UsageError(f"--walltime {text}: write 90m, 4h, 02:30:00 or 1-12:00")
    if not found_s:
        raise click.UsageError(f"--walltime {text}: a job that ends now cannot take part")
    return found_s


def _read(text: str) -> float | None:
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
    return None
