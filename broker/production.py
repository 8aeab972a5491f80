"""The configuration of a broker that others reach: TLS, keys, permissions, limits.

Two accounts. STORE holds the streams and nobody logs in to it. CLIENTS holds all users, and reaches
STORE's subjects as services. Why: a broker checks on what subject a user publishes, never to what
subject it wants the answer. In one account an answer (a reply of JetStream, or with a direct get
any bytes that somebody stored before) would land in a stream under another's subject. Here an
answer stays in CLIENTS, where no stream listens (tests/broker/test_permission_answers.py).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.configtext import quoted
from broker.roles import API, User, publishes, subscribes
from broker.settings import MAX_PAYLOAD_BYTES
from eventlog.log import MAX_BATCH

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
STORE, CLIENTS = "STORE", "CLIENTS"
LOG_FILE = "nats-server.log"
USERS_FILE = "users.conf"
_ANSWERS_S = 30  # after its last answer a request is over: longer than a pull's heartbeat
_HANDSHAKE_S = 5  # of TLS, and of logging in: who hangs half-open is cut off after it
_LOG_BYTES, _NUM_LOGS = 64 << 20, 8
# Of one site; who sends more is suspended (`broker.guard`).
MAX_PER_S, BURST = 200, 500
# An answer waits for all that was queued when its stream last took up its queue, so that is short:
# a whole batch, or a window of chunks, and little more.
_QUEUE_MESSAGES, _QUEUE_BYTES = MAX_BATCH + 140, 32 << 20
# Batches that are begun and not ended count for all writers together. So there are more of them
# than somebody can begin, whom the guard lets be, in the time after which the broker drops them.
_BATCH_S = 5
_OPEN_BATCHES = 2 * (BURST + MAX_PER_S * _BATCH_S)
_MEMORY_BYTES = 256 << 20  # of consumers, which hold positions only


@dataclass(frozen=True, slots=True)
class Shape:
    """A broker of one server, or a cluster of three.

    hosts: each server's name, and the name or address under which others reach it. listen: the
    address it binds, "own" for that very one. A port of 0 switches websockets, or leaf nodes, off.
    max_store_bytes: 0 for no limit but the disk's. own_authority: whether we sign the servers'
    certificates.
    """

    hosts: Mapping[str, str] = field(default_factory=dict)
    listen: str = "0.0.0.0"
    port: int = 4222
    websocket_port: int = 443
    monitor_port: int = 8222
    cluster_port: int = 6222
    leaf_port: int = 0
    max_connections: int = 1024
    max_store_bytes: int = 0
    own_authority: bool = True

    @property
    def num_replicas(self) -> int:
        """Of every stream."""
        return min(3, len(self.hosts))

    def bound(self, name: str) -> str:
        """The address that a server binds: with `listen` = "own", the one it is reached under."""
        return self.hosts[name] if self.listen == "own" else self.listen

    def monitor(self, name: str) -> int:
        """A server's own port for its health: several may stand on one machine."""
        return self.monitor_port + list(self.hosts).index(name)

    def problem(self) -> str:
        """Why no server can be reached so; '' where one can."""
        for host in self.hosts.values():
            if not _is_host(host):
                return f"{host!r} is no name or address of a machine, in ASCII and without a port"
        if self.listen != "own" and not _is_host(self.listen):
            return f"a server cannot listen on {self.listen!r}: give an address of its own"
        alone = (self.cluster_port, *self._monitors()) if len(self.hosts) > 1 else self._monitors()
        ports = [self.port, self.websocket_port, self.leaf_port, *alone]
        twice = sorted({port for port in ports if port and ports.count(port) > 1})
        return f"port {twice[0]} is asked for twice" if twice else ""

    def _monitors(self) -> tuple[int, ...]:
        return tuple(self.monitor(name) for name in self.hosts)

    def lacking(self, *, websocket: bool, leaf: bool) -> str:
        """Why nobody can come by what was asked for; '' where one can."""
        for asked, port, what, option in (
            (websocket, self.websocket_port, "websockets", "--websocket-port 443"),
            (leaf, self.leaf_port, "leaf nodes", "--leaf-port 7422"),
        ):
            if asked and not port:
                again = f"`atoll broker config` again with {option}, and restart it"
                return f"this broker takes no {what}: {again}"
        return ""

    def urls(self, *, websocket: bool = False) -> str:
        """Where clients connect."""
        scheme, port = ("wss", self.websocket_port) if websocket else ("tls", self.port)
        return ",".join(f"{scheme}://{_bracketed(host)}:{port}" for host in self.hosts.values())


def server_conf(shape: Shape, name: str) -> str:
    """nats-server.conf of the server `name`; paths in it are relative to its folder."""
    own = 'cert_file: "server.pem", key_file: "server.key"'
    parts = [
        f"server_name: {quoted(name)}",
        f"host: {quoted(shape.bound(name))}",
        f"port: {shape.port}",
        f'http: "127.0.0.1:{shape.monitor(name)}"',
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f"max_pending: {16 * MAX_PAYLOAD_BYTES}",
        'write_deadline: "30s"',
        'ping_interval: "20s"',
        "ping_max: 2",
        f"max_connections: {shape.max_connections}",
        "max_subscriptions: 256",
        f"tls {{ {own}, timeout: {_HANDSHAKE_S} }}",
        f"authorization {{ timeout: {_HANDSHAKE_S} }}",
        f'log_file: "{LOG_FILE}"',
        f"logfile_size_limit: {_LOG_BYTES}",
        f"logfile_max_num: {_NUM_LOGS}",
        _jetstream(shape),
    ]
    if shape.websocket_port:
        parts.append(
            f"websocket {{ host: {quoted(shape.bound(name))}, port: {shape.websocket_port}, "
            f"handshake_timeout: {quoted(f'{_HANDSHAKE_S}s')}, tls {{ {own} }} }}"
        )
    if shape.leaf_port:
        parts.append(_leafnodes(shape, name, own))
    if len(shape.hosts) > 1:
        parts.append(_cluster(shape, name, own))
    parts.append(f'include "{USERS_FILE}"')
    return "\n".join(parts) + "\n"


def users_conf(users: Iterable[User], admin: str = "") -> str:
    """users.conf: the accounts, and who may what. `admin`: the key of the server's own process."""
    services = ("atoll.>", f"{API}.>")
    # one import for all of the API: overlapping ones would ask twice
    exports = [
        f"{{ service: {quoted(services[0])} }}",
        f"{{ service: {quoted(services[1])}, response_type: stream, "
        f"response_threshold: {quoted(f'{_ANSWERS_S}s')} }}",
    ]
    imports = [f"{{ service: {{ account: {STORE}, subject: {quoted(one)} }} }}" for one in services]
    known = [_user(user) for user in sorted(users, key=lambda user: user.label)]
    system = f'"$SYS" {{ users: [{{ nkey: {admin} }}] }}' if admin else ""
    return f"""\
accounts {{
  {system}
  {STORE} {{
    jetstream: enabled
    exports: {_listed(exports)}
  }}
  {CLIENTS} {{
    imports: {_listed(imports)}
    users: {_listed(known)}
  }}
}}
"""


def _jetstream(shape: Shape) -> str:
    """`sync_interval: always`: an acknowledged event is on the disk. What all writers of a stream
    share is bounded so that one of them delays the others by little."""
    most = f", max_file_store: {shape.max_store_bytes}" if shape.max_store_bytes else ""
    return (
        f'jetstream {{ store_dir: "store", sync_interval: always, max_memory_store: '
        f"{_MEMORY_BYTES}{most}, max_buffered_msgs: {_QUEUE_MESSAGES}, "
        f"max_buffered_size: {_QUEUE_BYTES}, "
        f"limits {{ batch {{ max_inflight_per_stream: {_OPEN_BATCHES}, "
        f'max_inflight_total: {4 * _OPEN_BATCHES}, timeout: "{_BATCH_S}s" }} }} }}'
    )


def _leafnodes(shape: Shape, name: str, own: str) -> str:
    """Without `default_js_domain` a server keeps requests to JetStream from what passes a leaf."""
    return (
        f"leafnodes {{ host: {quoted(shape.bound(name))}, port: {shape.leaf_port}, "
        f"no_advertise: true, tls {{ {own}, timeout: {_HANDSHAKE_S} }} }}\n"
        f'default_js_domain {{ {CLIENTS}: "" }}'
    )


def _cluster(shape: Shape, name: str, own: str) -> str:
    """Servers of a cluster know each other by certificates of the same authority."""
    routes = [
        quoted(f"nats://{_bracketed(host)}:{shape.cluster_port}") for host in shape.hosts.values()
    ]
    return (
        f"cluster {{ name: atoll, host: {quoted(shape.bound(name))}, port: {shape.cluster_port}, "
        "no_advertise: true, "
        f'tls {{ {own}, ca_file: "ca.pem", verify: true, timeout: {_HANDSHAKE_S} }}, '
        f"routes: [{', '.join(routes)}] }}"
    )


def _user(user: User) -> str:
    publish, subscribe = (_subjects(found) for found in (publishes(user), subscribes(user)))
    types = ", ".join(user.connection_types)
    return (
        f"{{ nkey: {user.public}, allowed_connection_types: [{types}], "
        f"permissions: {{ publish: {{ allow: [{publish}] }}, "
        f"subscribe: {{ allow: [{subscribe}] }} }} }}  # {user.label}"
    )


def _subjects(found: Sequence[str]) -> str:
    return ", ".join(map(quoted, found))


def _listed(items: Sequence[str]) -> str:
    return "[\n" + "".join(f"      {item}\n" for item in items) + "    ]"


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text) <= 253 and all(_LABEL.fullmatch(one) for one in text.split("."))
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
