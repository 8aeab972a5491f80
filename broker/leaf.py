"""A leaf node: a nats-server on a login node, for compute nodes that reach nothing farther.

It keeps nothing. It dials out to the broker with a site's own key, so that what passes it has that
site's permissions there and is cut off with it, and lets in nobody but the holder of the same key,
by TLS under an authority of its own. Events are signed by the jobs: a leaf node cannot make any.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from broker.authority import new_authority, new_server
from broker.configtext import quoted
from broker.credentials import Credentials
from broker.errors import DeploymentInvalid
from broker.files import replace_file, write_secret
from broker.node import NODE_FILE
from broker.settings import MAX_PAYLOAD_BYTES
from broker.urls import servers

ACCOUNT = "SITE"
_HANDSHAKE_S = 5


@dataclass(frozen=True, slots=True)
class Leaf:
    """`host`: under which compute nodes reach it. `broker_port`: where the broker takes leaves."""

    host: str
    port: int = 4222
    monitor_port: int = 8222
    broker_port: int = 7422

    def write(self, folder: Path, site: Credentials) -> Path:
        """All that serving it needs, to `folder`; the credentials for the site's jobs. Raises
        DeploymentInvalid, OSError."""
        remotes = self._remotes(site)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = new_authority(f"atoll leaf {self.host}")
        pair = new_server(authority, list(dict.fromkeys([self.host, "localhost", "127.0.0.1"])))
        write_secret(folder / "server.key", pair.key)
        replace_file(folder / "server.pem", pair.certificate)
        replace_file(folder / "ca.pem", site.ca)
        write_secret(folder / "nats-server.conf", self._conf(site, remotes))
        node = {"host": self.host, "port": self.port, "monitor_port": self.monitor_port}
        replace_file(folder / NODE_FILE, json.dumps({**node, "num_servers": 1}) + "\n")
        host = f"[{self.host}]" if ":" in self.host else self.host
        jobs = replace(site, urls=f"tls://{host}:{self.port}", ca=authority.certificate)
        jobs.write(folder / f"{site.user.label}.creds")
        return folder / f"{site.user.label}.creds"

    def _remotes(self, site: Credentials) -> list[str]:
        found = [urlsplit(url) for url in servers(site.urls).urls]
        if site.role != "site" or any(url.scheme != "tls" for url in found):
            raise DeploymentInvalid(
                f"a leaf node takes credentials of a site, by TLS: not those of {site.user.label} "
                f"at {site.urls}; `atoll broker add-site --leaf` makes them"
            )
        return [f"tls://{url.netloc.rpartition(':')[0]}:{self.broker_port}" for url in found]

    def _conf(self, site: Credentials, remotes: list[str]) -> str:
        """Holds the seed: the server takes it from nowhere else. Deltas do not compress."""
        trust = 'ca_file: "ca.pem", ' if site.ca else ""
        return f"""\
server_name: {quoted(f"leaf-{site.user.label}")}
host: "0.0.0.0"
port: {self.port}
http: "127.0.0.1:{self.monitor_port}"
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {16 * MAX_PAYLOAD_BYTES}
write_deadline: "30s"
ping_interval: "20s"
ping_max: 2
max_connections: 64
max_subscriptions: 256
log_file: "nats-server.log"
logfile_size_limit: {64 << 20}
logfile_max_num: 2
tls {{ cert_file: "server.pem", key_file: "server.key", timeout: {_HANDSHAKE_S} }}
authorization {{ timeout: {_HANDSHAKE_S} }}
accounts {{ {ACCOUNT} {{ users: [{{ nkey: {site.key.public} }}] }} }}
default_js_domain {{ {ACCOUNT}: "" }}
leafnodes {{
  reconnect: "1s"
  remotes: [{{
    urls: [{", ".join(map(quoted, remotes))}]
    account: {ACCOUNT}
    nkey: {site.seed}
    compression: "off"
    tls {{ {trust}timeout: {_HANDSHAKE_S} }}
  }}]
}}
"""
