"""How our own nats-server runs, and its configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.configtext import quoted

MAX_PAYLOAD_BYTES = (4 << 20) + (64 << 10)  # a chunk of a blob or an event, and its headers


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One broker on this machine.

    store_dir: its streams, configuration, log and lock; node-local. port, monitor_port: 0 means the
    ports it had before, else free ones. start_s, stop_s: bounds of starting and stopping.
    written: its configuration stands in store_dir already (`broker.deployment`), with paths
    relative to that; `host` is then what others call it. num_servers: of its cluster.
    """

    store_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    monitor_port: int = 0
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    write_deadline_s: int = 30  # a reader that takes nothing for so long is cut off
    ping_s: int = 20
    start_s: float = 30.0
    stop_s: float = 15.0
    written: bool = False
    scheme: str = "nats"
    num_servers: int = 1

    @property
    def config_file(self) -> Path:
        return self.store_dir / "nats-server.conf"

    @property
    def log_file(self) -> Path:
        return self.store_dir / "nats-server.log"

    @property
    def address_file(self) -> Path:
        """JSON with url, port, monitor_port and pid, for whoever looks for the broker."""
        return self.store_dir / "broker.json"

    @property
    def lock_file(self) -> Path:
        return self.store_dir / "broker.lock"


def render(settings: ServerSettings, port: int, monitor_port: int) -> str:
    """The configuration file. `sync_interval: always` is what makes an acknowledged event survive
    a power cut; by default nats-server acknowledges up to two minutes before it syncs."""
    return f"""\
server_name: atoll
host: {quoted(settings.host)}
port: {port}
http: {quoted(f"127.0.0.1:{monitor_port}")}
max_payload: {settings.max_payload_bytes}
max_pending: {16 * settings.max_payload_bytes}
write_deadline: "{settings.write_deadline_s}s"
ping_interval: "{settings.ping_s}s"
ping_max: 2
jetstream {{
  store_dir: {quoted(str(settings.store_dir.resolve()))}
  sync_interval: always
}}
"""
