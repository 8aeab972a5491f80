"""The folder of one server of a configured broker: who may log in there, how it is served, and a
server that is told of a change."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker import kick, monitor
from broker.errors import DeploymentInvalid
from broker.files import replace_file
from broker.production import USERS_FILE, users_conf
from broker.roles import User
from broker.server import read_address
from broker.settings import ServerSettings

NODE_FILE, USERS_LIST, SHAPE_FILE = "node.json", "users.json", "shape.json"
_ASK_S = 5.0
_RELOAD_S = 10.0


def parse_users(path: Path) -> list[User]:
    """Everybody whom a list of users names. Raises DeploymentInvalid."""
    try:
        return [User(**{**wire, "runs": tuple(wire["runs"])}) for wire in read_json(path)]
    except (TypeError, KeyError) as error:
        raise DeploymentInvalid(f"{path} is no list of users; put it back from a copy") from error


def read_json(path: Path) -> Any:
    """What a file of the configuration holds. Raises DeploymentInvalid."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise DeploymentInvalid(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DeploymentInvalid(f"{path} is no JSON; put it back from a copy") from error


def read_users(folder: Path) -> list[User]:
    """Everybody whom a server's folder knows. Raises DeploymentInvalid."""
    return parse_users(folder / USERS_LIST)


def write_users(folder: Path, users: Iterable[User]) -> None:
    """Have the server of this folder let these in from its next reload on."""
    replace_file(folder / USERS_FILE, users_conf(users, kick.admin(folder)))


def keep_users(folder: Path, users: Iterable[User]) -> None:
    """Write down whom a server's folder knows from here on."""
    kept = list(users)
    replace_file(folder / USERS_LIST, listed(kept))
    write_users(folder, kept)


def listed(users: Iterable[User]) -> str:
    """A list of users, as a file holds it."""
    return json.dumps([asdict(user) for user in users], indent=1) + "\n"


def node_settings(folder: Path) -> ServerSettings | None:
    """How to serve what stands in `folder`: a server's own folder, or a ROOT of one server; None
    where it is neither. Raises DeploymentInvalid where it is a cluster's."""
    if not (folder / NODE_FILE).exists():
        found = sorted((folder / "nodes").glob(f"*/{NODE_FILE}"))
        if len(found) > 1:  # of other names before, perhaps
            hosts = read_json(folder / SHAPE_FILE)["hosts"]
            found = [path for path in found if path.parent.name in hosts]
        if len(found) > 1:
            names = ", ".join(path.parent.name for path in found)
            raise DeploymentInvalid(
                f"{folder} configures a cluster: serve one of its servers ({names}), such as "
                f"--dir {found[0].parent}"
            )
        if not found:
            return None
        folder = found[0].parent
    try:
        node = read_json(folder / NODE_FILE)
        return ServerSettings(folder, written=True, scheme="tls", **node)
    except TypeError as error:
        raise DeploymentInvalid(
            f"{folder / NODE_FILE} is not what `atoll broker config` wrote; let it write it again"
        ) from error


def reload_node(folder: Path) -> bool:
    """Have the server of this folder read its configuration again; False where none runs here.
    One that starts is waited for: it may have read what was there before. Raises DeploymentInvalid
    where it does not take it up."""
    end = time.monotonic() + _RELOAD_S
    while _is_served(folder):
        address = read_address(folder) or {}
        if pid := int(str(address.get("pid", 0))):
            write_users(folder, read_users(folder))
            _reload(folder, pid, int(str(address["monitor_port"])), end)
            return True
        if time.monotonic() > end:
            raise DeploymentInvalid(f"the server of {folder} starts, for long: reload it then")
        time.sleep(0.05)
    return False


def _reload(folder: Path, pid: int, monitor_port: int, end: float) -> None:
    url = f"http://127.0.0.1:{monitor_port}/varz"
    try:
        before = json.loads(monitor.ask(url, _ASK_S))["config_load_time"]
        signal_reload(pid)
        while time.monotonic() < end:
            if json.loads(monitor.ask(url, _ASK_S))["config_load_time"] != before:
                return
            time.sleep(0.05)
    except OSError as error:
        raise DeploymentInvalid(f"the server of {folder} does not answer: {error}") from error
    raise DeploymentInvalid(
        f"the server of {folder} did not take up its new configuration: see its log"
    )


def signal_reload(pid: int) -> None:
    """Have a server read its configuration again."""
    os.kill(pid, signal.SIGHUP)


def _is_served(folder: Path) -> bool:
    """Whether a server holds the folder's lock."""
    try:
        with ServerSettings(folder).lock_file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
