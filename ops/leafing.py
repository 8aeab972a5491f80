"""`atoll broker leaf`: a broker's outpost on a login node."""

from __future__ import annotations

from pathlib import Path

import click

from ops.output import json_option, port_option, print_json, say


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--creds",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The site's credentials, made by `atoll broker add-site --leaf`.",
)
@click.option("--host", required=True, help="The name under which compute nodes reach this one.")
@port_option("--port", 4222, "For jobs.")
@port_option("--monitor-port", 8222, "For its health, on this machine only.")
@port_option("--broker-port", 7422, "Where the broker takes leaf nodes.")
@json_option
def leaf(
    folder: Path,
    creds: Path,
    host: str,
    port: int,
    monitor_port: int,
    broker_port: int,
    as_json: bool,
) -> None:
    """Write to DIR a leaf node, for nodes that have no route here.

    It runs on a login node (`atoll broker serve --dir DIR`), dials out to the broker as the site,
    and lets in that site's jobs alone, with the credentials that it writes to DIR.
    """
    from broker.credentials import Credentials
    from broker.leaf import Leaf

    made = Leaf(host, port, monitor_port, broker_port).write(folder, Credentials.read(creds))
    if as_json:
        print_json({"dir": str(folder), "credentials": str(made)})
        return
    click.echo(made)
    say(f"serve it with `atoll broker serve --dir {folder}`; its jobs use these credentials")
