"""The connection of one process to its broker: a control link, and links for bulk apart from it."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from broker import monitor
from broker.credentials import Credentials
from broker.errors import BrokerUnfit, BrokerUnreachable, LinkDown, Refused
from broker.link import Link
from broker.session import PING_S, UNTRUSTED
from broker.urls import Servers, servers
from eventlog.blobs import CHUNK_BYTES
from eventlog.errors import ExtraMissing
from eventlog.keys import Key

LEAST_PING_S = 1.0  # a busy machine answers late
NUM_BULK = 4  # one TCP connection holds about 4 MiB in flight
_LEAST_PAYLOAD_BYTES = CHUNK_BYTES + (64 << 10)


class Connection:
    """Made by `connect`; closed by whoever made it, after the logs and blob stores on it. `url` is
    for people and logs: there is no password in it.

    Breaks heal by themselves. `num_breaks` counts those of the control link: a coordinator that
    sees it grow claims a new term before it ticks (R8).
    """

    def __init__(self, places: Servers, name: str, identity: Credentials | None = None) -> None:
        self.url, self.name, self.identity = places.shown, name, identity
        self.control = Link(places.urls, name, identity)
        self._bulk = [
            Link(places.urls, f"{name}-bulk{number}", identity, bulk=True)
            for number in range(NUM_BULK)
        ]
        self.server_id = ""

    @property
    def connected(self) -> bool:
        """Whether the control link stands now."""
        return self.control.connected

    @property
    def num_breaks(self) -> int:
        """Breaks of the control link so far."""
        return self.control.num_breaks

    @property
    def key(self) -> Key | None:
        """What signs this process's history."""
        return self.identity.key if self.identity else None

    @property
    def label(self) -> str:
        """Under which name this process's blobs are stored."""
        return self.identity.user.label if self.identity else "any"

    def check_writer(self, subject: str) -> None:
        """Raises Refused where our credentials are not those of who writes as `subject`: a broker
        gives what is not allowed no answer, so that it would be tried for ever."""
        if self.identity and self.identity.user.subject != subject:
            whose = f"{self.identity.role} {self.identity.name}"
            raise Refused(
                f"these credentials are of {whose}, who may not write as {subject}: give those "
                f"that may (--creds or $ATOLL_CREDS), or ask the operator of {self.url} for them"
            )

    @property
    def num_replicas(self) -> int:
        """Of streams made over this connection, and at most of any."""
        return self.identity.num_replicas if self.identity else 1

    def retry_within(self, seconds: float) -> None:
        """From here on, a link that broke is tried again at most so long after a try, and a control
        link that is silent counts as broken after twice as long or less."""
        for link in (self.control, *self._bulk):
            link.retry_s = min(link.retry_s, seconds)
        # not those for bulk, where a ping waits behind what is stored
        self.control.ping_every(min(PING_S, max(LEAST_PING_S, seconds / 2)))

    def bulk(self, number: int) -> Link:
        """A link for large messages, connected at its first use."""
        return self._bulk[number % NUM_BULK]

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in (self.control, *self._bulk)))

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def connect(url: str, *, name: str, identity: Credentials | None = None) -> Connection:
    """Connect to the broker at `url` (several, separated by commas, are tried in turn), as
    `identity` where there is one.

    Raises BrokerUrlInvalid, BrokerUnreachable within a few seconds where none answers, Refused
    where it does not let us in, BrokerUnfit where its messages may not be as large as a chunk of a
    blob, ExtraMissing where websockets need what is not installed.
    """
    places = servers(url)
    if places.urls[0].startswith("ws") and find_spec("aiohttp") is None:
        raise ExtraMissing("websockets need aiohttp: pip install 'atoll[websocket]'")
    connection = Connection(places, name, identity)
    try:
        session = await connection.control.start()
    except LinkDown as error:
        await connection.close()
        raise BrokerUnreachable(_unreachable(connection.url, error, identity)) from error
    except Refused as error:
        await connection.close()
        who = f"{identity.role} {identity.name}" if identity else "whoever has none (--creds)"
        raise Refused(f"{error} at {connection.url}: {who}; ask its operator for others") from error
    except BaseException:
        await connection.close()
        raise
    connection.server_id = session.server_id
    if session.max_payload_bytes < _LEAST_PAYLOAD_BYTES:
        await connection.close()
        raise BrokerUnfit(
            f"the broker at {connection.url} takes messages of {session.max_payload_bytes} bytes "
            f"at most; set its max_payload to {_LEAST_PAYLOAD_BYTES} or more"
        )
    return connection


async def check_server(connection: Connection, monitor_url: str | None = None) -> list[str]:
    """Whether an acknowledged event survives a power cut; what could not be checked, as warnings.

    A client cannot ask a broker how it syncs, only its monitor can (ours: `monitor_url` of
    BrokerServer). Raises BrokerUnfit where the monitor says that it does not sync always.
    """
    if monitor_url is None:
        return [
            f"the broker at {connection.url} was not started here: see to it that its JetStream "
            "has `sync_interval: always`, or a power cut can take acknowledged events"
        ]
    try:
        varz = await asyncio.to_thread(_varz, monitor_url)
        config, server_id = varz["jetstream"]["config"], varz["server_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the monitor at {monitor_url} does not say how the broker syncs: {error}"]
    if connection.server_id != server_id:
        return [f"the monitor at {monitor_url} belongs to another broker than {connection.url}"]
    if not config.get("sync_always"):
        raise BrokerUnfit(
            f"the broker at {connection.url} acknowledges events before they are on the disk; "
            "set `sync_interval: always` in its jetstream section and restart it"
        )
    return []


def _varz(monitor_url: str) -> dict[str, Any]:
    varz: dict[str, Any] = json.loads(monitor.ask(f"{monitor_url}/varz", 5.0))
    return varz


def _unreachable(url: str, error: LinkDown, identity: Credentials | None) -> str:
    """What to do where nobody answers, or one whom we do not trust."""
    if UNTRUSTED not in str(error):
        what = "start one with `atoll broker serve`, or give the URL of one that runs"
        return f"no broker answers at {url} ({error}); {what}"
    what = "see to that, or have its operator issue others (`atoll broker issue`)"
    if identity is None:
        what = "give the credentials that its operator issued (--creds or $ATOLL_CREDS)"
    return f"a broker answers at {url}, and {error}; {what}"
