"""`atoll broker`: the server that keeps logs and blobs, run on this machine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from ops import exits
from ops.output import json_option, print_json, say


@click.group()
def broker() -> None:
    """Run the broker that keeps logs and blobs.

    Any NATS server with JetStream that syncs every write will do; this one is set up so.
    """


@broker.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps everything, node-local; by default below ATOLL_HOME.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address it listens on, and the host of its URL; 0.0.0.0 listens on all.",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="N",
    help="The port; by default the one it had before, else a free one.",
)
@json_option
def serve(folder: Path | None, host: str, port: int, as_json: bool) -> None:
    """Serve until Ctrl-C or SIGTERM, then stop well.

    Every acknowledged event is on disk. Commands that run with the same ATOLL_HOME find the broker
    by themselves; others are given its URL.
    """
    from broker.errors import BrokerUnfit
    from broker.server import BrokerServer
    from broker.settings import ServerSettings
    from ops.home import Home

    settings = ServerSettings(folder or Home.find().broker, host=host, port=port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with BrokerServer(settings, die_with_parent=True) as server:
        if as_json:
            print_json({"url": server.url, "pid": server.pid, "dir": str(settings.store_dir)})
        else:
            click.echo(server.url)
            say(f"the broker keeps its data in {settings.store_dir}; Ctrl-C stops it")
            if host == "0.0.0.0":
                outside = server.url.replace(host, "HOST")
                say(f"from elsewhere it is {outside}, HOST a name or address of this machine")
        try:
            code = server.wait()
        except KeyboardInterrupt:
            server.stop()
            say(f"stopped; all it holds is in {settings.store_dir}, to be served again")
            raise click.exceptions.Exit(exits.INTERRUPTED) from None
        raise BrokerUnfit(f"nats-server ended by itself with {code}; see {settings.log_file}")
