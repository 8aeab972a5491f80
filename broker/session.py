"""One life of a client connection, from connecting to its first break.

The client's own reconnecting is switched off: it would send what was buffered before the break,
keep pull requests that no server remembers, and stay closed for ever after some errors. Instead a
session ends at the first break, everything that waits on it fails at once, and `broker.link` opens
the next one. Only this file and `broker.client` touch `nats`, whose types are partial.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import nats.errors

from broker.client import DirectClient, Ear, Message, Outgoing
from broker.credentials import Credentials
from broker.errors import LinkDown, Refused
from broker.wire import LARGE_BYTES, Wire

PING_S = 10.0
MAX_PINGS = 2  # unanswered; the third finds that the other side has hung, or the way is gone
FLUSH_S = 5.0  # how long a publish waits for a full buffer to drain
PENDING_BYTES = 16 << 20  # more than twice the largest message
_HEAD_BYTES = 1024  # more than subject, reply subject and headers of a message of ours
_CLOSE_S = 2.0
_CONNECT_TRIES = 1
UNTRUSTED = "its certificate is not trusted here"


class Session:
    """A connected client. After `ended` is set every call raises LinkDown."""

    def __init__(self, identity: Credentials | None = None) -> None:
        self.user = identity.user if identity else None
        self._identity = identity
        self.ended = asyncio.Event()
        self.max_payload_bytes = 0
        self.server_id = ""
        self.problem = "the connection was closed"
        self._client: Any = DirectClient()
        self._inbox = ""
        self._tokens = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._on_end: set[Callable[[], None]] = set()
        self._wire: Wire | None = None

    @classmethod
    async def open(
        cls,
        urls: Sequence[str],
        name: str,
        timeout_s: float,
        identity: Credentials | None = None,
        *,
        bulk: bool = False,
        ping_s: float = PING_S,
    ) -> Session:
        """Connect; `bulk`: to carry large requests and answers; `ping_s`: see `ping_every`. Raises
        LinkDown, Refused where the broker does not know the identity."""
        session = cls(identity)
        # In a task of its own: before Python 3.12 `asyncio.wait_for`, which the client uses, can
        # swallow the cancellation of whoever awaits it.
        connecting = asyncio.ensure_future(session._connect(urls, name, bulk, ping_s))
        try:
            await asyncio.wait({connecting}, timeout=timeout_s)
            if not connecting.done():
                raise LinkDown("no answer in time")
            connecting.result()
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            await session.close()
            if session.is_refused(error):
                raise Refused("the broker refuses these credentials") from error
            known = session.problem if isinstance(error, nats.errors.NoServersError) else ""
            raise LinkDown(known or _words(error)) from error
        except BaseException:
            await end_task(connecting)
            await session.close()
            raise
        return session

    def ping_every(self, seconds: float) -> None:
        """Ask so often for a sign of life; without any for three times as long the session ends."""
        self._client.ping_every(seconds)

    async def publish(self, *messages: Outgoing) -> None:
        """Hand messages to the connection, in order. Raises LinkDown."""
        if self._wire is None and self._has_room(messages):
            return await self._publish(messages)  # does not wait: no cancellation comes in between
        # In a task of its own: a cancellation inside the client's publish can be swallowed there.
        task = asyncio.ensure_future(self._publish(messages))
        self._sending.add(task)
        task.add_done_callback(self._sent)
        await asyncio.shield(task)

    async def request(self, *messages: Outgoing, timeout_s: float = 5.0) -> Message:
        """Publish messages, the last with a reply subject; its answer. Raises LinkDown: also
        when nobody listens there, or no answer comes in time."""
        loop, token = asyncio.get_running_loop(), str(next(self._tokens))
        self._waiting[token] = future = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, future, timeout_s)
        try:
            last = messages[-1]
            asking = Outgoing(last.subject, last.data, last.headers, f"{self._inbox}.{token}")
            await self.publish(*messages[:-1], asking)
            message: Message = await future
        finally:
            timer.cancel()
            self._waiting.pop(token).cancel()
        if message.status == "503":
            raise LinkDown("the broker does not serve its streams now")
        return message

    async def listen(self, take: Callable[[Message], None]) -> Listener:
        """Hand every message of a new inbox to `take`. Raises LinkDown."""
        inbox = str(self._client.new_inbox())
        try:
            subscription = await self._subscribe(inbox, take)
        except (nats.errors.Error, OSError) as error:
            raise LinkDown(str(error)) from error
        return Listener(inbox, subscription)

    def call_at_end(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the session ends, unless `forget_at_end` comes first."""
        self._on_end.add(wake)
        if self.ended.is_set():
            wake()

    def forget_at_end(self, wake: Callable[[], None]) -> None:
        self._on_end.discard(wake)

    async def finished(self) -> None:
        """Return after the first break, also where the client's own closing hangs on it."""
        while not (self.ended.is_set() or self._client.is_closed):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.ended.wait()
        self._end()

    async def close(self) -> None:
        """End the session, in bounded time."""
        self._end()
        tasks = self._client_tasks()
        closing = asyncio.ensure_future(self._client.close())
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        self._abort()
        for task in (closing, *tasks):
            await end_task(task)
        await asyncio.gather(*self._sending, return_exceptions=True)

    def is_refused(self, error: Exception) -> bool:
        """Whether the broker answered, and does not let us in."""
        return isinstance(error, nats.errors.AuthorizationError) or (
            "authorization violation" in f"{error} {self.problem}".lower()
        )

    async def _connect(self, urls: Sequence[str], name: str, bulk: bool, ping_s: float) -> None:
        options: dict[str, Any] = {}
        if self._identity is not None and self.user is not None:
            options["signature_cb"] = self._client.identify(self._identity.key)
            options["inbox_prefix"] = self.user.inbox
            if urls[0].partition(":")[0] in ("tls", "wss"):
                options["tls"] = self._identity.tls()

        async def on_error(error: Exception) -> None:
            self._note(error)

        async def on_closed() -> None:
            self._end()

        await self._client.connect(
            servers=list(urls),
            name=name,
            error_cb=on_error,
            closed_cb=on_closed,
            allow_reconnect=False,
            max_reconnect_attempts=_CONNECT_TRIES,
            reconnect_time_wait=0.1,
            connect_timeout=2,
            ping_interval=ping_s,
            max_outstanding_pings=MAX_PINGS,
            pending_size=PENDING_BYTES,
            flush_timeout=FLUSH_S,
            **options,
        )
        self.max_payload_bytes = int(self._client.max_payload)
        self.server_id = str(getattr(self._client, "_server_info", {}).get("server_id", ""))
        self._inbox = str(self._client.new_inbox())
        replies = await self._subscribe(self._inbox, self._take_reply)
        writer = getattr(getattr(self._client, "_transport", None), "_io_writer", None)
        if bulk and writer is not None:  # a websocket has none, and stays with the client
            await self._client.flush(FLUSH_S)  # nothing of ours is under way at the change
            self._wire = Wire(writer, replies._id, self._take_reply, self._client.heard)

    async def _subscribe(self, inbox: str, take: Callable[[Message], None]) -> Any:
        return await self._client.subscribe(f"{inbox}.*", future=Ear(take, self._note))

    def _note(self, error: Exception) -> None:
        self.problem = _words(error)

    def _has_room(self, messages: Sequence[Outgoing]) -> bool:
        """Whether the client takes messages without waiting."""
        waiting = getattr(self._client, "_pending_data_size", PENDING_BYTES)
        queue = getattr(self._client, "_flush_queue", None)
        waiting += sum(len(message.data) + _HEAD_BYTES for message in messages)
        return waiting < PENDING_BYTES and queue is not None and not queue.full()

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        if self.ended.is_set():
            raise LinkDown(self.problem)
        try:
            if self._wire is not None and len(messages[-1].data) >= LARGE_BYTES:
                return await self._wire.send(*messages)
            await self._client.send(*messages)
        except (nats.errors.Error, OSError) as error:
            raise LinkDown(str(error) or type(error).__name__) from error

    def _take_reply(self, message: Message) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where whoever sent it was cancelled

    def _end(self) -> None:
        self.ended.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkDown(self.problem))
        for wake in self._on_end:
            wake()

    def _client_tasks(self) -> list[asyncio.Task[Any]]:
        """The client's own tasks. When its closing fails on a reset socket it leaves them behind,
        and the error in a task that nobody awaits."""
        names = ("_reading_task", "_ping_interval_task", "_flusher_task", "_reconnection_task")
        tasks = [getattr(self._client, name, None) for name in names]
        return [task for task in tasks if isinstance(task, asyncio.Task)]

    def _abort(self) -> None:
        """Cut the socket: closing a dead link gently can wait for minutes."""
        writer: Any = getattr(getattr(self._client, "_transport", None), "_io_writer", None)
        with contextlib.suppress(AttributeError):  # no socket, or it has closed by itself
            writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Listener:
    """A subscription to one inbox: replies go to `<inbox>.<anything>`."""

    inbox: str
    _subscription: Any

    async def stop(self) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._subscription.unsubscribe()


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task until it has ended, also where it swallows a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)
    if not task.cancelled():
        task.exception()


def _expire(future: asyncio.Future[Message], seconds: float) -> None:
    if not future.done():
        future.set_exception(LinkDown(f"no answer within {seconds:g} s"))


def _words(error: Exception) -> str:
    """What went wrong, without the numbers and addresses that an OSError carries along."""
    if isinstance(error, socket.gaierror):
        return "its host is not known here"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{UNTRUSTED}: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or (
        "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    )
