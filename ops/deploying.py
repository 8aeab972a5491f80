"""`atoll broker config | add-site | revoke-site | issue | keys`: a broker that others reach."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.leafing import leaf
from ops.output import Option, json_option, port_option, print_json, say

if TYPE_CHECKING:
    from broker.deployment import Deployment

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_dir_option: Option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where `broker config` wrote the broker's configuration; by default below ATOLL_HOME.",
)
_run_option: Option = click.option(
    "--run", "runs", multiple=True, metavar="RUN", help="Only this run; may be given repeatedly."
)
_output_option: Option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The credentials file to make; by default below --dir.",
)
_websocket_option: Option = click.option(
    "--websocket",
    is_flag=True,
    help="Credentials that go through HTTPS: wss, by a proxy if any.",
)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", help="The name or address under which everybody reaches the broker.")
@click.option(
    "--cluster",
    metavar="NAME=HOST,...",
    help="Three servers in place of one: each one's name and host.",
)
@click.option(
    "--listen", default="0.0.0.0", show_default=True, help="The address it binds; own: its host."
)
@port_option("--port", 4222, "For clients.")
@port_option("--websocket-port", 443, "For sites that may only speak HTTPS; 0 for none.", least=0)
@port_option(
    "--monitor-port",
    8222,
    "For its health, on its own machine only; a cluster's servers take the next.",
)
@port_option("--cluster-port", 6222, "Between the servers of a cluster.")
@port_option("--leaf-port", 0, "For leaf nodes on login nodes, usually 7422; 0 for none.", least=0)
@click.option(
    "--max-connections",
    default=1024,
    show_default=True,
    type=click.IntRange(8),
    help="Of all clients together; a site has up to five.",
)
@click.option(
    "--max-store",
    default=0,
    metavar="BYTES",
    type=click.IntRange(0),
    help="The most that streams may take of the disk; by default three quarters of what is free.",
)
@click.option("--cert", type=_FILE, help="A certificate of your own, with its chain (PEM).")
@click.option("--key", type=_FILE, help="Its private key (PEM).")
@click.option("--ca", type=_FILE, help="Who signed it, where not every system trusts them (PEM).")
@json_option
def config(
    folder: Path,
    host: str | None,
    cluster: str | None,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Write a broker's whole configuration to DIR.

    TLS, keys, permissions, limits. Makes an authority and certificates unless some are given, and
    credentials of the operator, the coordinator, the planner and an auditor. Done again it takes
    new settings and renews the servers' certificates; authority, users and data stay.
    """
    from broker.authority import Pair
    from broker.deployment import Deployment
    from broker.production import Shape

    others["max_store_bytes"] = others.pop("max_store")
    if (cert is None) != (key is None):
        raise click.UsageError("--cert and --key go together")
    given = Pair(cert.read_text(), key.read_text()) if cert and key else None
    if cluster and given:
        raise click.UsageError("a cluster's servers need its own authority: no --cert")
    deployment = Deployment(folder)
    issued = deployment.configure(
        Shape(_hosts(host, cluster), **others), given, ca.read_text() if ca else ""
    )
    changed = deployment.refresh()
    nodes = [str(deployment.node(name)) for name in deployment.shape.hosts]
    if as_json:
        found = {"dir": str(folder), "nodes": nodes, "credentials": list(map(str, issued))}
        print_json({**found, "changed": list(map(str, changed))})
        return
    for path in issued:
        click.echo(path)
    if changed:
        names = ", ".join(path.name for path in changed)
        say(f"the way in has changed: hand out {names} again ({changed[0].parent})")
    for node in nodes:
        say(f"serve it with `atoll broker serve --dir {node}`")


def _hosts(host: str | None, cluster: str | None) -> dict[str, str]:
    from eventlog.log import NAME

    if (host is None) == (cluster is None):
        raise click.UsageError("give either --host or --cluster")
    if cluster is None:
        return {"atoll": str(host)}
    found = dict(part.strip().partition("=")[::2] for part in cluster.split(","))
    if len(found) != 3 or not all(NAME.match(name) and at for name, at in found.items()):
        raise click.UsageError("a cluster is three servers: --cluster n1=HOST,n2=HOST,n3=HOST")
    return found


@click.command("add-site")
@click.argument("name")
@click.option("--agent", is_flag=True, help="Of its login-node agent, which submits its jobs.")
@click.option("--leaf", is_flag=True, help="It may come by a leaf node on a login node as well.")
@_run_option
@_output_option
@_websocket_option
@_dir_option
@json_option
def add_site(name: str, agent: bool, **options: Any) -> None:
    """Let the site NAME in: issue its one credentials file.

    The broker knows it from then on, without a restart where it runs here. The file (mode 0600)
    holds URL, authority and secret; give it to the site by a safe way, where it is used by --creds,
    ATOLL_CREDS or as atoll.creds in ATOLL_HOME.
    """
    _issue("agent" if agent else "site", name, **options)


@click.command()
@click.argument("role", type=click.Choice(["operator", "coordinator", "planner", "auditor"]))
@click.argument("name")
@_run_option
@_output_option
@_websocket_option
@_dir_option
@json_option
def issue(role: str, name: str, **options: Any) -> None:
    """Issue credentials to NAME in a ROLE that is no site's."""
    _issue(role, name, **options)


def _issue(
    role: str,
    name: str,
    runs: tuple[str, ...],
    output: Path | None,
    websocket: bool,
    folder: Path | None,
    as_json: bool,
    leaf: bool = False,
) -> None:
    deployment = _deployment(folder)
    path = deployment.issue(role, name, runs, output, websocket=websocket, leaf=leaf)
    if not as_json:
        click.echo(path)
    reloaded = deployment.reload()
    if as_json:
        print_json({"role": role, "name": name, "credentials": str(path), "reloaded": reloaded})
        return
    _say_reloaded(deployment, reloaded)


@click.command("revoke-site")
@click.argument("name")
@click.option(
    "--role",
    default="site",
    show_default=True,
    type=click.Choice(["site", "agent", "operator", "coordinator", "planner", "auditor"]),
    help="What NAME was let in as.",
)
@_dir_option
@json_option
def revoke_site(name: str, role: str, folder: Path | None, as_json: bool) -> None:
    """Let NAME in no longer; its connections end at once.

    What it wrote stays, and counts: to have a run drop a key as well, see `atoll run keys`.
    """
    deployment = _deployment(folder)
    by_leaf = True
    try:
        by_leaf = deployment.revoke(role, name).leaf
    finally:  # also of somebody who is out already: a revocation that was interrupted is ended
        reloaded = deployment.reload()
        _cut_strangers(deployment, reloaded if by_leaf else {})
    if as_json:
        print_json({"role": role, "name": name, "reloaded": reloaded})
    else:
        _say_reloaded(deployment, reloaded)


def _cut_strangers(deployment: Deployment, reloaded: Mapping[str, bool]) -> None:
    """End the connections of leaf nodes, which a reload does not."""
    from broker.kick import Administration

    for server in reloaded:
        if reloaded[server]:
            with closing(Administration(deployment.node(server))) as administration:
                administration.cut_strangers({one.public for one in deployment.users})


@click.command()
@_dir_option
@json_option
def keys(folder: Path | None, as_json: bool) -> None:
    """Print the public keys of all who write, a line each.

    It is what `atoll run create --keys` and `atoll run keys` name in a run.
    """
    for user in _deployment(folder).users:
        if user.subject is None:
            continue
        if as_json:
            print_json({"subject": user.subject, "key": user.public, "runs": list(user.runs)})
        else:
            click.echo(f"{user.subject} {user.public}")


def _deployment(folder: Path | None) -> Deployment:
    from broker.deployment import Deployment
    from ops.home import Home

    return Deployment(folder or Home.find().broker)


def _say_reloaded(deployment: Deployment, reloaded: dict[str, bool]) -> None:
    for name, done in reloaded.items():
        where = deployment.node(name)
        if done:
            say(f"the server {name} knows it")
            continue
        elsewhere = f"put {where / 'users.json'} in its folder, then `atoll broker reload`"
        if len(reloaded) > 1:
            say(f"the server {name} does not run here: where it does, {elsewhere}")
        else:
            say(f"the server does not run; it knows it when it starts. Elsewhere, {elsewhere}")


@click.command()
@_dir_option
def reload(folder: Path | None) -> None:
    """Have the server that runs here read its users anew.

    Without a restart; nobody's connection ends but that of who was revoked.
    """
    from broker.errors import DeploymentInvalid
    from broker.kick import Administration
    from broker.node import node_settings, read_users, reload_node
    from ops.home import Home

    place = folder or Home.find().broker
    settings = node_settings(place)
    if settings is None or not reload_node(settings.store_dir):
        raise DeploymentInvalid(f"no configured server runs on {place}")
    with closing(Administration(settings.store_dir)) as administration:
        administration.cut_strangers({one.public for one in read_users(settings.store_dir)})
    say("its users are what its folder says")


COMMANDS = (config, add_site, issue, revoke_site, keys, reload, leaf)
