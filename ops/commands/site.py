"""`atoll site`: take part in a run with this machine."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from ops.durations import seconds
from ops.output import Reach, broker_option, run_name, say, sites_option
from ops.rates import max_rate_option, pace_of


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
    "--ranks",
    default=1,
    show_default=True,
    metavar="N",
    help="Processes of the trainer on this machine, one an accelerator.",
)
@click.option(
    "--sharding",
    type=click.Choice(["ddp", "fsdp2"]),
    default="ddp",
    show_default=True,
    help="Of many ranks: each has the whole model, or a part of every parameter.",
)
@click.option(
    "--launcher",
    metavar="COMMAND",
    help="What starts the ranks in place of --ranks, such as a torchrun over several nodes; "
    "docs/training.md has examples.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where this site keeps its inner optimizer and residual for its next job, on whichever "
    "machine that runs; by default in ATOLL_HOME.",
)
@click.option(
    "--checkpoint-every",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="And once more when it leaves; `never` makes none.",
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
    ranks: int,
    sharding: str,
    launcher: str | None,
    checkpoints: Path | None,
    checkpoint_every: str,
    walltime: str | None,
    successor: bool,
    max_rate: float | None,
    broker: Reach,
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
    from sitehub.spawn import Ranks

    if not NAME.match(name):
        raise click.UsageError(f"{name!r} is no site name: lower-case letters, digits, hyphens")
    if threads < 1 or ranks < 1:
        raise click.UsageError(f"--{'threads' if threads < 1 else 'ranks'}: at least 1")
    if launcher and ranks > 1:
        raise click.UsageError("--launcher says itself how many ranks it starts: leave out --ranks")
    how = Ranks(ranks, sharding, tuple(shlex.split(launcher or "")))
    walltime_s = None if walltime is None else _granted_s(walltime)
    Corpus.open(data, verify="full")
    kept = None
    if checkpoint_every != "never":
        folder = checkpoints.absolute() / run / name if checkpoints else None
        kept = (folder, seconds(checkpoint_every, "--checkpoint-every"))
    slot = Slot(name, data.absolute(), threads, how, kept, walltime_s, successor, max_rate)
    return asyncio.run(_run(run, slot, broker))


@dataclass(frozen=True, slots=True)
class Slot:
    """One job's part in a run, as its options say."""

    name: str
    data: Path
    threads: int
    ranks: Any
    checkpoints: tuple[Path | None, float] | None  # where, if not at home; every so many seconds
    walltime_s: float | None
    successor: bool
    max_rate: float | None


async def _run(run: str, slot: Slot, broker: Reach) -> int:

    from eventlog.progress import SpokenBlobs
    from eventlog.writer import Writer
    from ops.connect import opened
    from ops.home import Home
    from ops.signals import on_request
    from sitehub.handover import Handover
    from sitehub.hub import Hub
    from sitehub.saved import Saving

    def tell(text: str) -> None:
        say(f"{slot.name}: {text}")

    home = Home.find().site(run, slot.name)
    saving = None
    if slot.checkpoints is not None:
        saving = Saving(slot.checkpoints[0] or home / "checkpoints", slot.checkpoints[1])
    walltime_s, pace = slot.walltime_s, pace_of(slot.max_rate)
    async with opened(
        run, broker, f"site-{slot.name}", pace, moves_blobs=True, writes=f"site.{slot.name}"
    ) as (
        log,
        blobs,
        connection,
    ):
        hub = Hub(
            log,
            SpokenBlobs(blobs, tell),
            slot.name,
            home,
            slot.data,
            num_threads=slot.threads,
            walltime_end=None if walltime_s is None else time.monotonic() + walltime_s,
            successor=slot.successor,
            max_rate=slot.max_rate,
            saving=saving,
            say=tell,
            trainers=partial(Handover, ranks=slot.ranks),
            pen=partial(Writer, key=connection.key),
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
def drain(run: str, name: str, reason: str, broker: Reach) -> None:
    """Ask the site NAME to leave RUN well.

    It ends its block, delivers what is trained and departs; its process ends with exit code 0.
    """
    from eventlog.events import DrainRequested
    from eventlog.log import NAME

    if not NAME.match(name):
        raise click.UsageError(f"{name!r} is no site name: lower-case letters, digits, hyphens")
    sequence = asyncio.run(_request(run, broker, DrainRequested(site=name, reason=reason)))
    say(f"asked for at sequence {sequence}; watch it leave: atoll watch {run}")


async def _request(run: str, broker: Reach, event: Any) -> int:
    from eventlog.events import OPERATOR
    from ops.connect import opened
    from ops.folded import request

    async with opened(run, broker, writes=OPERATOR) as (log, _, connection):
        return await request(log, event, connection.key)


@site.command()
@click.argument("name")
@sites_option
@click.option("--run", default="run", show_default=True, callback=run_name, help="For which run.")
@click.option("--nodes", type=click.IntRange(1), help="By default those of the largest shape.")
@click.option("--walltime", metavar="TIME", help="By default that of the largest shape.")
@click.option("--successor", is_flag=True, help="As a job that follows another one.")
@click.option(
    "--requeue",
    is_flag=True,
    help="To be submitted by hand: the job starts itself again when atoll ends with 75.",
)
def script(
    name: str,
    sites: Path,
    run: str,
    nodes: int | None,
    walltime: str | None,
    successor: bool,
    requeue: bool,
) -> None:
    """Print the batch script that an agent would submit for NAME.

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
    ask = scripts.Ask(run, scripts.job_name(run, name, 0, run), shape, successor, requeues=requeue)
    work = Home.find().root / "placement" / run / name
    work.mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for what the job says
    click.echo(scripts.render(one, ask, sites.absolute().parent, work), nl=False)


def _centres(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from ops.placement.profiles import names

    return [one for one in names() if one.startswith(incomplete)]


@site.command()
@click.argument("centre", required=False, shell_complete=_centres)
def profile(centre: str | None) -> None:
    """Print the sites file of a known CENTRE, or all their names.

    It is made from the centre's public documentation. What no page says it names, with the reason,
    and no script is rendered before that is filled in (docs/add-your-site.md).
    """
    from ops.placement.profiles import names, text

    click.echo(text(centre) if centre else "\n".join(names()), nl=not centre)


def _granted_s(text: str) -> float:
    """The walltime of an option: a time, or that of the job this is."""
    if text != "job":
        return seconds(text)
    import os

    from ops.placement.granted import left_s

    return max(1.0, left_s(os.environ, time.time()))
