"""The client of the broker, with less between a message and the socket.

As it comes, it hands each message that arrives to a queue and to a task that waits on it, and each
message that leaves to a queue and to the task that writes. A decision that waits for its own
append pays for every such turn. So what is heard goes straight to its listener, and what is said
straight to the socket while that takes it; where it does not, the client's own way is the bound.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

from nats.aio.client import Client
from nats.aio.transport import TcpTransport, WebSocketTransport
from nats.errors import Error
from nats.protocol.parser import Parser

from eventlog.keys import Key

DELIVERED = b"$JS.ACK."  # begins the reply subject of what a consumer delivers


class Message(NamedTuple):
    """What came: `status` is the header of that name ("100", "404", ...), empty in plain data and
    in what a consumer delivers, whose headers are left out."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def status(self) -> str:
        return self.headers.get("Status", "")


class Outgoing(NamedTuple):
    """A message to publish."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] | None = None
    reply: str = ""


@dataclass(slots=True, eq=False)
class Ear:
    """Stands where the client expects a future; `take` gets every message. Whatever it raises is
    the listener's misfortune and not that of the connection."""

    take: Callable[[Message], None]
    failed: Callable[[Exception], None]

    def hear(self, message: Message) -> None:
        try:
            self.take(message)
        except Exception as error:
            self.failed(error)


class DirectClient(Client):
    """Also bears what the client cannot parse: it would cut the connection at each message with
    such a header or subject, and a stream that holds one could never be read again."""

    _holds_back = False

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Heeding(self)

    def heard(self) -> None:
        """Whatever comes is a sign of life: the answer to a ping may stand behind megabytes."""
        self._pings_outstanding = 0

    def ping_every(self, seconds: float) -> None:
        """Ask so often for a sign of life, from now on."""
        self.options["ping_interval"] = seconds
        if self._ping_interval_task is not None:
            self._ping_interval_task.cancel()
            task = asyncio.get_running_loop().create_task(self._ping_interval())
            self._ping_interval_task = task

    def identify(self, key: Key) -> Callable[[str], bytes]:
        """Be ready to log in with `key`; what `connect` takes as signature_cb: the broker's nonce
        comes back signed, the seed is not sent."""
        self._public_nkey = key.public
        self._auth_configured = True
        return lambda nonce: base64.b64encode(key.sign(nonce.encode()))

    async def send(self, *messages: Outgoing) -> None:
        """Publish in order, written together. Raises what `publish` raises."""
        self._holds_back = True
        try:
            for message in messages:
                headers = dict(message.headers) if message.headers else None  # it changes them
                await self.publish(message.subject, message.data, message.reply, headers)
        finally:
            self._holds_back = False
            await self._flush_pending()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if self._holds_back and not force_flush:
            return None
        writer = getattr(self._transport, "_io_writer", None)  # a websocket has none
        if writer is None or _waiting_bytes(writer):
            return await super()._flush_pending(force_flush)
        if force_flush or not self.is_connected:
            return await super()._flush_pending(force_flush)
        pending, self._pending, self._pending_data_size = self._pending, [], 0
        if pending:
            writer.writelines(pending)
        return None

    async def _connect_to_server(self, s: Any) -> None:
        """A websocket goes through the proxy that the environment names (HTTPS_PROXY, NO_PROXY)."""
        if not self._transport and s.uri.scheme in ("ws", "wss"):
            self._transport = transport = WebSocketTransport()
            if proxy := proxy_for(s.uri.scheme, s.uri.hostname):
                from aiohttp import ClientSession

                direct, transport._client = transport._client, ClientSession(proxy=proxy)
                await direct.close()
        elif not self._transport:
            self._transport = _Tcp()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Nothing is said in the clear, a password least, to a broker that was asked for TLS."""
        asked = self._current_server is not None and self._current_server.uri.scheme == "tls"
        if initial_connection and asked and not info.get("tls_required"):
            raise Error("it speaks no TLS, which tls:// asks for")
        await super()._process_info(info, initial_connection)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        ear = getattr(self._subs.get(sid), "_future", None)
        if not isinstance(ear, Ear):
            return await super()._process_msg(sid, subject, reply, data, headers)
        # the headers of what a stream delivers are its writer's: nobody asks for them
        delivered = reply.startswith(DELIVERED)
        known = {} if delivered else (await self._process_headers(headers)) or {}
        named = {str(getattr(key, "value", key)): str(value) for key, value in known.items()}
        ear.hear(Message(_text(subject), _text(reply), named, bytes(data)))

    async def _process_pong(self) -> None:
        """The answer to a ping that nobody waits for any more would end the client's reading."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_headers(self, headers: Any) -> Any:
        try:
            return await super()._process_headers(headers)
        except Exception:
            return None


class _Heeding(Parser):
    async def parse(self, data: bytes = b"") -> None:
        self.nc.heard()
        await super().parse(data)


class _Tcp(TcpTransport):
    """Knows that it is under TLS, where the client's own would warn at each connection's end."""

    def __bool__(self) -> bool:
        return True  # also before it is connected, when the client would make another

    async def connect_tls(self, *args: Any, **options: Any) -> None:
        await super().connect_tls(*args, **options)
        writer: Any = self._io_writer
        protocol = writer.transport.get_protocol()
        protocol._over_ssl = True


def proxy_for(scheme: str, host: str) -> str | None:
    """The HTTP proxy for a websocket, by the variables that everybody else on a machine follows."""
    names = {"ws": ("ws", "http"), "wss": ("wss", "https")}[scheme]
    found = getproxies()
    named = next((found[name] for name in names if name in found), None)
    return None if named is None or proxy_bypass(host) else named


def _text(raw: bytes) -> str:
    """Each byte that is no UTF-8 becomes U+FFFD, as where the server writes JSON."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return re.sub("[\udc80-\udcff]", "\ufffd", raw.decode(errors="surrogateescape"))


def _waiting_bytes(writer: Any) -> int:
    """What a writer has not sent yet. A TLS transport that has just lost its connection cannot say:
    what is pending then waits for the next connection, as the client has it."""
    try:
        return int(writer.transport.get_write_buffer_size())
    except AttributeError:  # of its protocol, which is gone (asyncio, Python 3.11)
        return 1
