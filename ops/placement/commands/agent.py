"""`atoll place agent`, `probe`, `halt` and `go`: what is done on a login node."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say, sites_option


@click.command()
@click.argument("run", metavar="RUN", callback=run_name)
@click.argument("site")
@sites_option
@click.option("--dry-run", is_flag=True, help="Say what the plan would have done; do nothing.")
@broker_option
def agent(run: str, site: str, sites: Path, dry_run: bool, broker: Reach) -> int:
    """Serve the site SITE of RUN from its login node.

    It looks at the queue, probes, submits and cancels as the plan says, within the caps of the
    sites file. It dials out and needs no root. It ends when the run has ended and no job of it is
    left in the queue; killed at any time, it goes on where it was. `atoll place halt` makes it keep
    still.
    """
    return asyncio.run(_agent(run, site, sites, dry_run, broker))


async def _agent(run: str, name: str, path: Path, is_dry: bool, broker: Reach) -> int:
    from ops.connect import opened
    from ops.home import Home
    from ops.placement.serve import serving
    from ops.placement.sites import load
    from ops.signals import on_request

    def tell(text: str) -> None:
        say(f"{name}: {text}")

    home, sites = Home.find(), load(path)
    folder = path.absolute().parent
    sites.named(name)
    async with (
        opened(run, broker, f"agent-{name}") as (log, _, _),
        serving(log, home, sites, name, folder, tell, is_dry=is_dry) as served,
    ):
        work = asyncio.create_task(served.run())
        left: list[int] = []

        def leave(_: str, reason: str, exit_code: int) -> None:
            tell(f"{reason}; its jobs stay in the queue, and another agent goes on")
            left.append(exit_code)
            work.cancel()

        on_request(leave)
        try:
            tell(await work)
        except asyncio.CancelledError:
            if not left:
                raise
            return left[0]
    return 0


@click.command()
@click.argument("site")
@sites_option
@json_option
def probe(site: str, sites: Path, as_json: bool) -> int:
    """Ask once when jobs of SITE would start.

    One question a shape. Run it on the login node. Nothing is submitted, but each question takes a
    job id, and counts against the caps of the sites file. Exit code 1 where one was not answered.
    """
    answers = asyncio.run(_probe(site, sites))
    for one in answers:
        if as_json:
            print_json(one)
        else:
            click.echo(f"{one['nodes']:>6} nodes {one['walltime_s'] / 3600:>7.2f} h  {one['says']}")
    return 0 if all(one["outcome"] == "estimated" for one in answers) else 1


async def _probe(name: str, path: Path) -> list[dict[str, Any]]:
    from ops.home import Home
    from ops.placement.probing import ask_all
    from ops.placement.sites import load

    site = load(path).named(name)
    return await ask_all(Home.find(), site, path.absolute().parent, time.time)


@click.command("halt")
@click.option("--reason", default="somebody halted it", show_default=True, help="For the log.")
@click.option("--cancel", is_flag=True, help="Cancel the jobs of the agents here as well.")
def halt_(reason: str, cancel: bool) -> None:
    """Have the agents here keep still.

    It makes a file in ATOLL_HOME that every agent of this home looks for each second; a sites file
    can name another one, for whoever runs the centre. `atoll place go` removes it.
    """
    from ops.home import Home
    from ops.placement import halt

    say(f"halted: {halt.halt(Home.find().root, reason, cancel)}; `atoll place go` goes on")


@click.command("go")
def go_() -> int:
    """Let the agents here go on."""
    from ops.home import Home
    from ops.placement import halt

    was = halt.go(Home.find().root)
    say("the agents here go on" if was else "nothing was halted here")
    return 0 if was else 1
