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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from broker import kick
from broker.authority import Pair, check_authority, check_pair, new_authority, new_server
from broker.credentials import Credentials, CredentialsInvalid
from broker.errors import DeploymentInvalid
from broker.files import replace_file, write_secret
from broker.node import (
    NODE_FILE,
    SHAPE_FILE,
    USERS_LIST,
    keep_users,
    listed,
    parse_users,
    read_json,
    reload_node,
)
from broker.production import Shape, server_conf
from broker.roles import User
from eventlog.events import COORDINATOR, OPERATOR, PLANNER
from eventlog.keys import Key

_EVER = datetime.min.replace(tzinfo=UTC)  # before any certificate ends
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
FIRST = ((OPERATOR, "main"), (COORDINATOR, "main"), (PLANNER, "main"), ("auditor", "main"))
SUFFIX = ".creds"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The folder ROOT, once `configure` has filled it."""

    root: Path

    @property
    def exists(self) -> bool:
        return self._file(SHAPE_FILE).exists()

    @property
    def shape(self) -> Shape:
        """Raises DeploymentInvalid where ROOT holds no configuration."""
        try:
            return Shape(**self._read(SHAPE_FILE))
        except TypeError as error:
            what = f"{self._file(SHAPE_FILE)} is not what `atoll broker config` wrote"
            raise DeploymentInvalid(f"{what}; let it write it again") from error

    @property
    def users(self) -> list[User]:
        """Everybody who may log in. Raises DeploymentInvalid."""
        self._read(USERS_LIST)
        return parse_users(self._file(USERS_LIST))

    def node(self, name: str) -> Path:
        """The folder of one server."""
        return self.root / "nodes" / name

    def configure(self, shape: Shape, given: Pair | None = None, ca: str = "") -> list[Path]:
        """Write everything, users and authority kept where they are there; the credentials that
        are new. `given`: a certificate to use, signed by `ca` (PEM; empty where everybody's
        system trusts its signer). Raises DeploymentInvalid, OSError."""
        _check(shape, given, ca)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            self._check_stores(shape)
            self._known()
            authority = None if given else self._authority(next(iter(shape.hosts.values())))
            shape = replace(shape, own_authority=given is None)
            self._write(SHAPE_FILE, {**asdict(shape), "hosts": dict(shape.hosts)})
            replace_file(self._file("ca.pem"), authority.certificate if authority else ca)
            for name, host in shape.hosts.items():
                pair = given or new_server(authority or Pair("", ""), _names(host))
                self._write_node(shape, name, pair)
            known = {(user.role, user.name) for user in self._known()}
            new = (User(*one, public="") for one in FIRST if one not in known)
            return [self._let_in(user) for user in new]

    def refresh(self) -> list[Path]:
        """Have the credentials that are kept here lead where the broker is now, under the authority
        that it has now; those that did not."""
        shape, changed = self.shape, []
        for path in sorted(self._file("credentials").glob(f"*{SUFFIX}")):
            try:
                old = Credentials.read(path)
            except CredentialsInvalid:
                continue  # whoever uses it is told
            websocket = old.urls.startswith("wss:") and bool(shape.websocket_port)
            now = replace(
                old,
                urls=shape.urls(websocket=websocket),
                ca=self._file("ca.pem").read_text(),
                num_replicas=shape.num_replicas,
            )
            if now != old:
                now.write(path)
                changed.append(path)
        return changed

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
        """Have the servers that run here take up who may log in, without a restart: each server's
        name, and whether it did. The others are not on this machine, or not running; they do at
        their start. Also mends what somebody left who was interrupted. Raises DeploymentInvalid
        where one runs and refuses, or hangs, once all others were told."""
        self._read(USERS_LIST)
        with self._locked():
            self._hand_out(self.users)
        done, problems = {}, []
        for name in self.shape.hosts:
            try:
                done[name] = reload_node(self.node(name))
            except DeploymentInvalid as error:
                again = f"`atoll broker reload --dir {self.node(name)}` when that is mended"
                problems.append(f"{error}; {again}")
        if problems:
            raise DeploymentInvalid("; ".join(problems))
        return done

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
        replace_file(self._file(USERS_LIST), listed(kept))
        self._hand_out(kept)

    def _hand_out(self, users: list[User]) -> None:
        for name in self.shape.hosts:
            keep_users(self.node(name), users)

    def _known(self) -> list[User]:
        return self.users if self._file(USERS_LIST).exists() else []

    def _write_node(self, shape: Shape, name: str, pair: Pair) -> None:
        folder = self.node(name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(folder / "server.key", pair.key)
        replace_file(folder / "server.pem", pair.certificate)
        replace_file(folder / "ca.pem", self._file("ca.pem").read_text())
        kick.make_admin(folder)
        keep_users(folder, self._known())
        replace_file(folder / "nats-server.conf", server_conf(shape, name))
        node = {
            "host": shape.hosts[name],
            "port": shape.port,
            "monitor_port": shape.monitor(name),
            "num_servers": len(shape.hosts),
        }
        replace_file(folder / NODE_FILE, json.dumps(node, indent=1) + "\n")

    def _authority(self, host: str) -> Pair:
        """Our own. Its certificate stands in ca.key as well, behind the key: ca.pem is what others
        are to trust, which is not it while there is a certificate of somebody's own."""
        key, public = self._file("ca.key"), self._file("ca.pem")
        if not key.exists():
            made = new_authority(f"atoll broker {host}")
            write_secret(key, made.key + made.certificate)
            return made
        text = key.read_text()
        for certificate in (text, public.read_text() if public.exists() else ""):
            found = Pair(certificate[certificate.find(_CERTIFICATE) :], text)
            if not check_pair(found, _EVER):
                write_secret(key, text.partition(_CERTIFICATE)[0] + found.certificate)
                return found
        raise DeploymentInvalid(
            f"the certificate of {key} is in {public} no more: put that back from a copy of this "
            "folder, or remove both, and have all credentials issued anew"
        )

    def _check_stores(self, shape: Shape) -> None:
        """Raises DeploymentInvalid where runs would be served no more."""
        for path in sorted(self._file("nodes").glob("*/store")):
            if path.parent.name not in shape.hosts:
                raise DeploymentInvalid(
                    f"{path} holds runs, which servers of other names ({', '.join(shape.hosts)}) "
                    "would not serve: configure those in another folder"
                )

    def _credentials(self, user: User) -> Path:
        return self.root / "credentials" / f"{user.label}{SUFFIX}"

    def _file(self, name: str) -> Path:
        return self.root / name

    def _read(self, name: str):  # type: ignore[no-untyped-def]
        try:
            return read_json(self._file(name))
        except DeploymentInvalid as error:
            if self._file(name).exists():
                raise
            raise DeploymentInvalid(
                f"{self.root} holds no broker's configuration: `atoll broker config` writes one; "
                "where it stands elsewhere, name that folder by --dir"
            ) from error

    def _write(self, name: str, content: object) -> None:
        replace_file(self._file(name), json.dumps(content, indent=1) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time: two would each lose the other's user."""
        with self._file(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _check(shape: Shape, given: Pair | None, ca: str) -> None:
    """Raises DeploymentInvalid before anything is written."""
    if not shape.hosts:
        raise DeploymentInvalid("a broker needs the name under which others reach it: --host")
    problem = shape.problem()
    if given and not problem and (said := check_pair(given)):
        problem = f"--cert and --key: {said}"
    if ca and not problem and (said := check_authority(ca)):
        problem = f"--ca: {said}"
    if problem:
        raise DeploymentInvalid(problem)


def _names(host: str) -> list[str]:
    """What a certificate covers: the server's name, and this machine's own for who looks after it
    there."""
    return list(dict.fromkeys([host, "localhost", "127.0.0.1"]))
