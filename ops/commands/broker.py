"""`atoll broker`: the server that keeps logs and blobs, run on this machine."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops import exits
from ops.deploying import COMMANDS
from ops.output import json_option, print_json, say
from ops.restoring import backup, restore
from ops.signals import noted

if TYPE_CHECKING:
    from broker.server import BrokerServer
    from broker.settings import ServerSettings

_LOOK_S = 10.0  # between two looks at the server's health
_PAUSE_S = 0.25  # within which it ends when it is told to


@click.group()
def broker() -> None:
    """Run the broker that keeps logs and blobs.

    `serve` alone starts one for this machine and whoever may reach it, without keys. For the open
    internet `config` writes one with TLS, keys and permissions, `add-site` lets a site in, and
    `serve --dir` runs it.
    """


for command in (*COMMANDS, backup, restore):
    broker.add_command(command)


@broker.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps everything, node-local; by default below ATOLL_HOME. What `broker config` "
    "wrote there is served as configured.",
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

    Every acknowledged event is on disk. Where a log lacks what it held when it was served last,
    nobody is let in: exit code 3 (docs/damage.md). Commands that run with the same ATOLL_HOME find
    the broker by themselves; others are given its URL, or credentials. It says when its health
    changes.
    """
    from broker.node import node_settings
    from broker.server import BrokerServer
    from broker.settings import ServerSettings
    from ops.home import Home
    from ops.notify import notify

    place = folder or Home.find().broker
    settings = node_settings(place) or ServerSettings(place, host=host, port=port)
    if settings.written and (port or host != "127.0.0.1"):
        raise click.UsageError(
            f"{place} is configured: its host and port are changed with `atoll broker config`"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while it starts
    _check_holdings(settings)
    with BrokerServer(settings, die_with_parent=True) as server:
        told = noted()
        _announce(server, settings, as_json)
        notify("READY=1")
        _watch(server, told)
        _note_holdings(server)
        if signal.SIGINT in told:
            server.stop()
            say(f"stopped; all it holds is in {settings.store_dir}, to be served again")
            raise click.exceptions.Exit(exits.INTERRUPTED)


def _check_holdings(settings: ServerSettings) -> None:
    """Say what is wrong with second copies. Raises LogDamaged. Of a cluster each server fetches
    from the others what it lacks."""
    from broker.errors import BrokerUnfit
    from broker.repair import check_apart

    if settings.num_servers == 1:
        try:
            for text in check_apart(settings.store_dir):
                say(text)
        except OSError as error:
            raise BrokerUnfit(f"what the broker holds cannot be looked at: {error}") from error


def _note_holdings(server: BrokerServer) -> None:
    """Write down how far each log goes; where the server does not say, what is there stays."""
    from broker import holdings
    from eventlog.errors import LogDamaged

    if server.settings.num_servers == 1:
        with contextlib.suppress(OSError, LogDamaged):  # a list that is damaged is said at a start
            holdings.write(server.settings.store_dir, holdings.look(server.monitor_url))


def _announce(server: BrokerServer, settings: ServerSettings, as_json: bool) -> None:
    if as_json:
        print_json({"url": server.url, "pid": server.pid, "dir": str(settings.store_dir)})
        return
    say(f"the broker keeps its data in {settings.store_dir}; Ctrl-C stops it")
    if settings.host == "0.0.0.0":
        outside = server.url.replace(settings.host, "HOST")
        say(f"from elsewhere it is {outside}, HOST a name or address of this machine")
    click.echo(server.url)  # last: whoever reads it may stop us at once


def _watch(server: BrokerServer, told: list[int]) -> None:
    """Wait until it is told to end; an end of the server is an error before. Say when its health
    changes; where it has users, suspend who floods it."""
    from broker.errors import BrokerUnfit
    from broker.guard import Watch

    with contextlib.ExitStack() as stack:
        guard = None
        if Watch.is_due(server.settings):
            guard = stack.enter_context(contextlib.closing(Watch(server)))
        health, looked = Health(), time.monotonic()
        while not told:
            code = server.wait(guard.pause_s if guard else _PAUSE_S)
            if code is not None and not told:  # Ctrl-C ends the server as well
                what = f"nats-server ended by itself with {code}; see {server.settings.log_file}"
                raise BrokerUnfit(what)
            now = time.monotonic()
            if guard is not None:
                with contextlib.suppress(OSError):  # a server that is too busy is asked again
                    for text in guard.look(now):
                        say(text)
            if now - looked < _LOOK_S:
                continue
            looked, said = now, health.see(server.trouble())
            _note_holdings(server)
            if said:
                say(said)


class Health:
    """What to say of a server's health as it changes. A server is unwell for a moment while it
    makes a stream: only what it says at two looks in a row is trouble."""

    def __init__(self) -> None:
        self._told, self._seen = "", ""

    def see(self, found: str) -> str:
        """`found`: what its health check says now, '' where it is well. '' where nothing is new."""
        lasts, self._seen = bool(self._seen), found
        if found == self._told or (found and not lasts):
            return ""
        self._told = found
        return f"the broker is not well: {found}" if found else "the broker is well again"
