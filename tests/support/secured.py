"""A broker in production shape for tests: TLS, keys, permissions; on free ports of this machine."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from broker.connection import Connection, connect
from broker.credentials import Credentials
from broker.deployment import Deployment
from broker.node import node_settings
from broker.production import Shape
from broker.server import BrokerServer

_WELL_S = 60.0


class Issuing:
    """A configured broker, and the credentials it issued."""

    def __init__(self, root: Path) -> None:
        self.deployment = Deployment(root)

    def add(self, role: str, name: str, runs: tuple[str, ...] = (), **options: bool) -> Credentials:
        """Issue credentials and have the servers take them up."""
        path = self.deployment.issue(role, name, runs, **options)
        assert all(self.deployment.reload().values())
        return Credentials.read(path)

    def file(self, role: str, name: str = "main") -> Path:
        """The credentials file of somebody."""
        return self.deployment.root / "credentials" / f"{role}-{name}.creds"

    def credentials(self, role: str, name: str = "main") -> Credentials:
        return Credentials.read(self.file(role, name))

    async def connect(self, role: str, name: str = "main", *, host: str = "") -> Connection:
        """A connection as somebody; `host`: to this one of the servers only."""
        identity = self.credentials(role, name)
        urls = [one for one in identity.urls.split(",") if host in one]
        return await connect(",".join(urls), name=identity.user.label, identity=identity)


class Secured(Issuing):
    """One server, which runs."""

    def __init__(
        self, root: Path, *, websocket: bool = False, leaves: bool = False, host: str = "localhost"
    ) -> None:
        super().__init__(root)
        ports = free_ports(4)
        shape = Shape(
            {"atoll": host},
            listen="127.0.0.1" if host == "localhost" else "0.0.0.0",
            port=ports[0],
            monitor_port=ports[1],
            websocket_port=ports[2] if websocket else 0,
            leaf_port=ports[3] if leaves else 0,
        )
        self.deployment.configure(shape)
        settings = node_settings(root)
        assert settings is not None
        self.server = BrokerServer(settings, die_with_parent=True)


class Cluster(Issuing):
    """Three servers of one broker, on three addresses of this machine."""

    HOSTS: ClassVar = {"n1": "127.0.0.1", "n2": "127.0.0.2", "n3": "127.0.0.3"}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        port, cluster_port = free_ports(2)
        shape = Shape(
            self.HOSTS,
            listen="own",
            port=port,
            cluster_port=cluster_port,
            monitor_port=_three_in_a_row(),
            websocket_port=0,
        )
        self.deployment.configure(shape)
        self.servers = {name: self._server(name) for name in self.HOSTS}

    def _server(self, name: str) -> BrokerServer:
        settings = node_settings(self.deployment.node(name))
        assert settings is not None
        return BrokerServer(settings, die_with_parent=True)

    def wait_well(self) -> None:
        """Until the servers have found each other and a leader."""
        end = time.monotonic() + _WELL_S
        while trouble := [said for one in self.servers.values() if (said := one.trouble())]:
            assert time.monotonic() < end, trouble
            time.sleep(0.1)

    def rebuild(self, name: str) -> None:
        """A server that was killed comes back with nothing but its configuration."""
        shutil.rmtree(self.deployment.node(name) / "store")
        self.servers[name].start()


@contextmanager
def clustered(root: Path) -> Iterator[Cluster]:
    """Three servers that run until the end of the block."""
    made = Cluster(root)
    try:
        for server in made.servers.values():
            server.start()
        made.wait_well()
        yield made
    finally:
        for server in made.servers.values():
            server.stop()


def _three_in_a_row() -> int:
    while True:
        (port,) = free_ports(1)
        if port < 65_000:
            return port


@contextmanager
def secured(root: Path, **options: Any) -> Iterator[Secured]:
    """A broker that runs until the end of the block; `options` of `Secured`."""
    made = Secured(root, **options)
    with made.server:
        yield made


def free_ports(num: int) -> list[int]:
    """Ports that nobody has now."""
    probes = [socket.socket() for _ in range(num)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
