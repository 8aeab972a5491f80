"""`atoll broker backup` and `broker restore`: a damaged log put back from a copy of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from ops.output import json_option, print_json, run_name, say

_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The broker's folder, as `serve` is given it; by default below ATOLL_HOME.",
)


@click.command()
@click.argument("run", callback=run_name)
@click.argument("target", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_dir_option
@json_option
def backup(run: str, target: Path, folder: Path | None, as_json: bool) -> None:
    """Write a backup of RUN's log to FILE, on the broker's machine.

    The broker may go on serving: every event is in it that was acknowledged when this began. What
    is written was read whole first. An older FILE is replaced. Blobs are not in it: `atoll log
    export --blobs` has them.
    """
    from broker.backup import back_up

    store, num_servers = _store(folder)
    if num_servers > 1:
        raise click.UsageError(
            f"{store} is a server of a cluster, whose servers each hold every log: a further copy "
            f"is made by `atoll run mirror {run}`, or `atoll log export {run} --blobs`"
        )
    if not target.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {target.absolute().parent}")
    done = asyncio.run(back_up(store, run, target.absolute()))
    if as_json:
        print_json({**asdict(done), "file": str(target), "num_bytes": target.stat().st_size})
        return
    click.echo(
        f"run {run} is in {target} through {done.last_sequence:,}; log digest {done.log_digest}"
    )


@click.command()
@click.argument("run", callback=run_name)
@_dir_option
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of `atoll broker backup`; by default the copy of `atoll run mirror`.",
)
@click.option(
    "--proof",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An exported log of the run: the copy must hold every event of it.",
)
@click.option("--lose", is_flag=True, help="Write off events that no copy has.")
@click.option(
    "--drop-mirror",
    is_flag=True,
    help="Move a damaged second copy out of the way instead, once the log is found whole.",
)
@json_option
def restore(
    run: str,
    folder: Path | None,
    source: Path | None,
    proof: Path | None,
    lose: bool,
    drop_mirror: bool,
    as_json: bool,
) -> None:
    """Put RUN's log back from a copy; the broker is to be down.

    The copy (`atoll run mirror`, `atoll broker backup`) is read whole first; every sequence and
    time stays as it was. The damaged files are kept beside the store. With --proof, what somebody
    exported before proves that the copy is this history; each coordinator and site proves it once
    more as it starts, for it knows what it had read.
    """
    from broker.backup import restore_backup
    from broker.repair import drop_copy
    from broker.repair import restore as restore_copy
    from eventlog.export import read_export, read_header

    store, num_servers = _store(folder)
    if num_servers > 1:
        raise click.UsageError(
            f"{store} is a server of a cluster: it fetches what it lacks from the others; stop it, "
            "move its `store` away, and serve it again"
        )
    if drop_mirror and (source or proof or lose):
        raise click.UsageError("--drop-mirror changes no log: no --from, --proof or --lose with it")
    if proof is not None and read_header(proof) != run:
        raise click.UsageError(f"{proof} is a log of run {read_header(proof)}, not of {run}")
    known = list(read_export(proof)) if proof else []
    if drop_mirror:
        done = asyncio.run(drop_copy(store, run))
    elif source is not None:
        done = asyncio.run(restore_backup(store, run, source, known, lose=lose))
    else:
        done = asyncio.run(restore_copy(store, run, known, lose=lose))
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
    if drop_mirror:
        click.echo(
            f"run {run} is whole through {done.last_sequence:,}; serve the broker, and have "
            f"`atoll run mirror {run}` make its second copy anew"
        )
        return
    click.echo(
        f"run {run} is restored through {done.last_sequence:,}; log digest {done.log_digest}; "
        "serve the broker again"
    )


def _store(folder: Path | None) -> tuple[Path, int]:
    """The folder of the server that a broker's folder is or holds; of how many."""
    from broker.node import node_settings
    from ops.home import Home

    place = folder or Home.find().broker
    settings = node_settings(place)
    return (settings.store_dir, settings.num_servers) if settings else (place, 1)
