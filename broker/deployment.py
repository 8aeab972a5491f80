"""A broker for others: its authority, its users, and one folder for each of its servers.

    ROOT/shape.json            what `atoll broker config` was told
    ROOT/users.json            names, roles and public keys; no secret
    ROOT/ca.pem, ca.key        our own authority; the key never leaves this folder
    ROOT/credentials/*.creds   issued files, to be handed to whom they are for
    ROOT/nodes/NAME/           all that one server needs; of a cluster, copied to its machine

Whoever holds ROOT can issue and revoke; a server's folder can do neither.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from broker import kick, monitor
from broker.authority import Pair, new_authority, new_server
from broker.credentials import Credentials, write_secret
from broker.production import USERS_FILE, Shape, server_conf, users_conf
from broker.roles import User
from broker.server import read_address
from broker.settings import ServerSettings
from eventlog.errors import AtollError
from eventlog.events import COORDINATOR, OPERATOR, PLANNER
from eventlog.keys import Key

FIRST = ((OPERATOR, "main"), (COORDINATOR, "main"), (PLANNER, "main"), ("auditor", "main"))
SUFFIX = ".creds"
_RELOAD_S = 10.0


class DeploymentInvalid(AtollError):
    """What was asked of a broker's configuration cannot be done; the text says why."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The folder ROOT, once `configure` has filled it."""

    root: Path

    @property
    def exists(self) -> bool:
        return self._file("shape.json").exists()

    @property
    def shape(self) -> Shape:
        """Raises DeploymentInvalid where ROOT holds no configuration."""
        return Shape(**self._read("shape.json"))

    @property
    def users(self) -> list[User]:
        """Everybody who may log in. Raises DeploymentInvalid."""
        return [_user(one) for one in self._read(USERS_LIST)]

    def node(self, name: str) -> Path:
        """The folder of one server."""
        return self.root / "nodes" / name

    def configure(self, shape: Shape, given: Pair | None = None, ca: str = "") -> list[Path]:
        """Write everything, users and authority kept where they are there; the credentials that
        are new. `given`: a certificate to use, signed by `ca` (PEM; empty where everybody's
        system trusts its signer). Raises DeploymentInvalid, OSError."""
        if not shape.hosts:
            raise DeploymentInvalid("a broker needs the name under which others reach it: --host")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            shape = replace(shape, own_authority=given is None)
            self._write("shape.json", {**asdict(shape), "hosts": dict(shape.hosts)})
            authority = None if given else self._authority(next(iter(shape.hosts.values())))
            self._file("ca.pem").write_text(authority.certificate if authority else ca)
            for name, host in shape.hosts.items():
                pair = given or new_server(authority or Pair("", ""), _names(host))
                self._write_node(shape, name, pair)
            known = {(user.role, user.name) for user in self._known()}
            new = (User(*one, public="") for one in FIRST if one not in known)
            return [self._let_in(user) for user in new]

    def issue(
        self,
        role: str,
        name: str,
        runs: Sequence[str] = (),
        target: Path | None = None,
        *,
        websocket: bool = False,
        leaf: bool = False,
    ) -> Path:
        """Let somebody in, `leaf`: by a leaf node too; the credentials file made for them. Raises
        DeploymentInvalid."""
        if lacking := self.shape.lacking(websocket=websocket, leaf=leaf):
            raise DeploymentInvalid(lacking)
        with self._locked():
            if any((user.role, user.name) == (role, name) for user in self.users):
                raise DeploymentInvalid(
                    f"{role} {name} has credentials already; `atoll broker revoke-site {name}` "
                    "first, if they are lost"
                )
            user = User(role, name, public="", runs=tuple(runs), leaf=leaf)
            return self._let_in(user, target, websocket=websocket)

    def revoke(self, role: str, name: str) -> User:
        """Let somebody in no longer; whom. Raises DeploymentInvalid."""
        self._read(USERS_LIST)  # without a configuration there is nothing to lock
        with self._locked():
            users = self.users
            for user in users:
                if (user.role, user.name) == (role, name):
                    self._keep(one for one in users if one is not user)
                    self._credentials(user).unlink(missing_ok=True)
                    return user
        raise DeploymentInvalid(f"{role} {name} has no credentials of this broker ({self.root})")

    def reload(self) -> dict[str, bool]:
        """Have the servers that run here take up users.conf, without a restart: each server's name,
        and whether it did. The others are not on this machine, or not running; they do at their
        start. Raises DeploymentInvalid where one runs and refuses."""
        return {name: reload_node(self.node(name)) for name in self.shape.hosts}

    # -- the files --------------------------------------------------------------------------------

    def _let_in(self, user: User, target: Path | None = None, *, websocket: bool = False) -> Path:
        """Give a user a key; the credentials file made of it."""
        key, shape = Key.generate(), self.shape
        user = replace(user, public=key.public)
        try:
            user.check()
        except ValueError as error:
            raise DeploymentInvalid(str(error)) from error
        path = target or self._credentials(user)
        ca, urls = self._file("ca.pem").read_text(), shape.urls(websocket=websocket)
        Credentials(user.role, user.name, urls, key.seed, ca, shape.num_replicas).write(path)
        self._keep([*self._known(), user])
        return path

    def _keep(self, users: Iterable[User]) -> None:
        """Write down who may log in, here and in every server's folder."""
        kept = list(users)
        self._write(USERS_LIST, [asdict(user) for user in kept])
        for name in self.shape.hosts:
            _keep_users(self.node(name), kept)

    def _known(self) -> list[User]:
        return self.users if self._file(USERS_LIST).exists() else []

    def _write_node(self, shape: Shape, name: str, pair: Pair) -> None:
        folder = self.node(name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(folder / "server.key", pair.key)
        _replace(folder / "server.pem", pair.certificate)
        _replace(folder / "ca.pem", self._file("ca.pem").read_text())
        kick.make_admin(folder)
        _keep_users(folder, self._known())
        _replace(folder / "nats-server.conf", server_conf(shape, name))
        node = {
            "host": shape.hosts[name],
            "port": shape.port,
            "monitor_port": shape.monitor(name),
            "num_servers": len(shape.hosts),
        }
        _replace(folder / NODE_FILE, json.dumps(node, indent=1) + "\n")

    def _authority(self, host: str) -> Pair:
        certificate, key = self._file("ca.pem"), self._file("ca.key")
        if key.exists():
            return Pair(certificate.read_text(), key.read_text())
        made = new_authority(f"atoll broker {host}")
        write_secret(key, made.key)
        return made

    def _credentials(self, user: User) -> Path:
        return self.root / "credentials" / f"{user.label}{SUFFIX}"

    def _file(self, name: str) -> Path:
        return self.root / name

    def _read(self, name: str):  # type: ignore[no-untyped-def]
        try:
            return json.loads(self._file(name).read_text())
        except (OSError, ValueError) as error:
            raise DeploymentInvalid(
                f"{self.root} holds no broker's configuration: `atoll broker config` writes one; "
                "where it stands elsewhere, name that folder by --dir"
            ) from error

    def _write(self, name: str, content: object) -> None:
        _replace(self._file(name), json.dumps(content, indent=1) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time: two would each lose the other's user."""
        with self._file(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


NODE_FILE, USERS_LIST = "node.json", "users.json"


def read_users(folder: Path) -> list[User]:
    """Everybody whom a server's folder knows."""
    return [_user(one) for one in json.loads((folder / USERS_LIST).read_text())]


def write_users(folder: Path, users: Iterable[User]) -> None:
    """Have the server of this folder let these in from its next reload on."""
    _replace(folder / USERS_FILE, users_conf(users, kick.admin(folder)))


def _keep_users(folder: Path, users: list[User]) -> None:
    _replace(folder / USERS_LIST, json.dumps([asdict(user) for user in users], indent=1) + "\n")
    write_users(folder, users)


def _user(wire: dict[str, Any]) -> User:
    return User(**{**wire, "runs": tuple(wire["runs"])})


def node_settings(folder: Path) -> ServerSettings | None:
    """How to serve what stands in `folder`: a server's own folder, or a ROOT of one server; None
    where it is neither. Raises DeploymentInvalid where it is a cluster's."""
    if not (folder / NODE_FILE).exists():
        found = sorted((folder / "nodes").glob(f"*/{NODE_FILE}"))
        if len(found) > 1:
            names = ", ".join(path.parent.name for path in found)
            raise DeploymentInvalid(
                f"{folder} configures a cluster: serve one of its servers ({names}), such as "
                f"--dir {found[0].parent}"
            )
        if not found:
            return None
        folder = found[0].parent
    node = json.loads((folder / NODE_FILE).read_text())
    return ServerSettings(folder, written=True, scheme="tls", **node)


def reload_node(folder: Path) -> bool:
    """Have the server of this folder read its configuration again; False where none runs here.
    Raises DeploymentInvalid where it does not take it up."""
    address = read_address(folder)
    if address is None or not _is_served(folder):
        return False
    url = f"http://127.0.0.1:{address['monitor_port']}/varz"
    before = json.loads(monitor.ask(url, 5.0))["config_load_time"]
    write_users(folder, read_users(folder))
    signal_reload(int(str(address["pid"])))
    end = time.monotonic() + _RELOAD_S
    while time.monotonic() < end:
        if json.loads(monitor.ask(url, 5.0))["config_load_time"] != before:
            return True
        time.sleep(0.05)
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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _names(host: str) -> list[str]:
    """What a certificate covers: the server's name, and this machine's own for who looks after it
    there."""
    return list(dict.fromkeys([host, "localhost", "127.0.0.1"]))


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
