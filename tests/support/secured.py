"""A broker in production shape for tests: TLS, keys, permissions; on free ports of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.connection import Connection, connect
from broker.credentials import Credentials
from broker.deployment import Deployment, node_settings
from broker.production import Shape
from broker.server import BrokerServer


class Secured:
    """A configured broker that runs, and the credentials it issued."""

    def __init__(self, root: Path, *, websocket: bool = False) -> None:
        self.deployment = Deployment(root)
        ports = free_ports(3)
        shape = Shape(
            {"atoll": "localhost"},
            listen="127.0.0.1",
            port=ports[0],
            monitor_port=ports[1],
            websocket_port=ports[2] if websocket else 0,
        )
        self.deployment.configure(shape)
        settings = node_settings(root)
        assert settings is not None
        self.server = BrokerServer(settings, die_with_parent=True)

    def add(self, role: str, name: str, runs: tuple[str, ...] = (), **options: bool) -> Credentials:
        """Issue credentials and have the server take them up."""
        path = self.deployment.issue(role, name, runs, **options)
        assert self.deployment.reload() == {"atoll": True}
        return Credentials.read(path)

    def file(self, role: str, name: str = "main") -> Path:
        """The credentials file of somebody."""
        return self.deployment.root / "credentials" / f"{role}-{name}.creds"

    def credentials(self, role: str, name: str = "main") -> Credentials:
        return Credentials.read(self.file(role, name))

    async def connect(self, role: str, name: str = "main") -> Connection:
        """A connection as somebody."""
        identity = self.credentials(role, name)
        return await connect(identity.urls, name=identity.user.label, identity=identity)


@contextmanager
def secured(root: Path, *, websocket: bool = False) -> Iterator[Secured]:
    """A broker that runs until the end of the block."""
    made = Secured(root, websocket=websocket)
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
