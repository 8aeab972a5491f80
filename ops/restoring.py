"""`atoll broker restore`: a damaged log put back from its second copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ops.output import json_option, print_json, run_name, say


@click.command()
@click.argument("run", callback=run_name)
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The broker's folder, as `serve` is given it; by default below ATOLL_HOME.",
)
@click.option(
    "--proof",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An exported log of the run: the copy must hold every event of it.",
)
@click.option("--lose", is_flag=True, help="Write off events that no copy has.")
@json_option
def restore(run: str, folder: Path | None, proof: Path | None, lose: bool, as_json: bool) -> None:
    """Put RUN's log back from its copy; the broker is to be down.

    The copy (`atoll run mirror`) is read whole first; every sequence and time stays as it was. The
    damaged files are kept beside the store. With --proof, what somebody exported before proves that
    the copy is this history; each coordinator and site proves it once more as it starts, for it
    knows what it had read.
    """
    from broker.deployment import node_settings
    from broker.repair import restore as put_back
    from eventlog.export import read_export, read_header
    from ops.home import Home

    place = folder or Home.find().broker
    settings = node_settings(place)
    if settings and settings.num_servers > 1:
        raise click.UsageError(
            f"{place} is a server of a cluster: it fetches what it lacks from the others; stop it, "
            "move its `store` away, and serve it again"
        )
    if proof is not None and read_header(proof) != run:
        raise click.UsageError(f"{proof} is a log of run {read_header(proof)}, not of {run}")
    known = list(read_export(proof)) if proof else []
    store = settings.store_dir if settings else place
    done = asyncio.run(put_back(store, run, known, lose=lose))
    if as_json:
        print_json(
            {
                "run": run,
                "last_sequence": done.last_sequence,
                "log_digest": done.log_digest,
                "damaged_files": done.aside or None,
            }
        )
        return
    if done.aside:
        say(f"the damaged files are kept in {done.aside}")
    click.echo(
        f"run {run} is restored through {done.last_sequence:,}; log digest {done.log_digest}; "
        "serve the broker again"
    )
