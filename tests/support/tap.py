"""A TCP proxy before the broker that reads what its clients publish, and can be slow.

A test sets traps: at the message that one waits for, the proxy tells the test in the very moment
(`then` is called before another byte passes), and loses what it was told to lose. Of TLS it reads
nothing, unless it is given what a server of that broker has: then it stands in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from eventlog.codec import unpack

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Published:
    """A message from a client to the broker."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event in it, as plain data; empty where it is none."""
        if ".ev." not in self.subject:
            return {}
        try:
            found = unpack(self.payload)
        except Exception:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def batch(self) -> bytes:
        """The id of the atomic batch it belongs to."""
        return _header(self.headers, b"Nats-Batch-Id")

    @property
    def commits(self) -> bool:
        """Whether it is the last of what is appended at once."""
        return not self.batch or bool(_header(self.headers, b"Nats-Batch-Commit"))


@dataclass(slots=True, eq=False)
class Trap:
    """What happens at the first message that `catches`, once.

    before: `then` is called in place of passing the message on; of an atomic batch all but the
    last message has passed by then, and the last has not. after: the message is passed on, the
    broker's answer to it is lost, and `then` is called at that moment: what was sent is stored.
    seen: `then` is called as the message passes.
    """

    catches: Callable[[Published], bool]
    when: Literal["before", "after", "seen"]
    then: Callable[[], object] = lambda: None
    caught: Published | None = None
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    _batch: bytes = b""

    def takes(self, message: Published) -> bool:
        """Whether it acts on this message."""
        if self.sprung.is_set() or (self.caught is not None and not self._batch):
            return False
        if self.caught is None and self.catches(message):
            self.caught, self._batch = message, message.batch
        elif self.caught is None or message.batch != self._batch:
            return False
        return message.commits

    def spring(self) -> None:
        self._batch = b""
        self.then()
        self.sprung.set()


class Tap:
    """Passes everything both ways. delay_s: how long each byte is under way, in each direction.
    node: the folder of a server that has TLS, whose certificate the tap shows to clients."""

    def __init__(self, delay_s: float = 0.0, node: Path | None = None) -> None:
        self._node = node
        self._links: set[asyncio.Task[None]] = set()
        self._traps: list[Trap] = []
        self._mute: dict[str, Trap] = {}  # by the subject of an answer that shall be lost
        self.delay_s = delay_s
        self.url = ""

    def set(self, trap: Trap) -> Trap:
        self._traps.append(trap)
        return trap

    def clear(self) -> None:
        """Forget traps that nothing has sprung."""
        self._traps.clear()
        self._mute.clear()

    async def relay(
        self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection of a client to the server at `target`, until either end closes it."""
        place = urlsplit(target)
        try:
            far_reader, far_writer = await asyncio.open_connection(place.hostname, place.port)
        except OSError:
            writer.transport.abort()
            return
        if self._node is not None:
            opening = self._open(self._node, place.hostname or "", far_reader, far_writer, writer)
            try:
                await opening
            except (OSError, asyncio.IncompleteReadError):
                for end in (writer, far_writer):
                    end.transport.abort()
                return
        sealed = place.scheme == "tls" and self._node is None
        told, said = (None, None) if sealed else (self._sent, self._answered)
        up = asyncio.ensure_future(self._pass(reader, far_writer, _Frames(told)))
        down = asyncio.ensure_future(self._pass(far_reader, writer, _Frames(said)))
        self._links |= {up, down}
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            self._links -= {up, down}
            for end in (writer, far_writer):
                end.transport.abort()

    def cut(self) -> None:
        """Break every connection now."""
        for task in list(self._links):
            task.cancel()

    async def _open(
        self,
        node: Path,
        host: str,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        """TLS on both sides, behind the first line of a server, which comes in the clear. Raises
        OSError, IncompleteReadError."""
        first = await far_reader.readuntil(b"\r\n")
        await far_writer.start_tls(
            ssl.create_default_context(cafile=node / "ca.pem"), server_hostname=host
        )
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ours.load_cert_chain(node / "server.pem", node / "server.key")
        writer.write(first)
        await writer.start_tls(ours)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: _Frames
    ) -> None:
        """One direction. What is read waits its time in a queue, so that delay costs no rate."""
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                at, data = await under_way.get()
                if (left_s := at - clock()) > 0:
                    await asyncio.sleep(left_s)
                if not data:
                    return
                writer.write(frames.passed(data))
                await writer.drain()

        arriving = asyncio.ensure_future(arrive())
        try:
            while not arriving.done():
                data = await reader.read(_CHUNK)
                under_way.put_nowait((clock() + self.delay_s, data))
                if not data:
                    break
            await arriving
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

    def _sent(self, verb: bytes, fields: list[str], headers: bytes, payload: bytes) -> bool:
        """Whether a client's message passes."""
        if verb not in (b"PUB", b"HPUB"):
            return True
        num_sizes = 2 if verb == b"HPUB" else 1
        reply = fields[1] if len(fields) > 1 + num_sizes else ""
        message = Published(fields[0], reply, headers, payload)
        for trap in list(self._traps):
            if not trap.takes(message):
                continue
            self._traps.remove(trap)
            if trap.when == "after":
                self._mute[message.reply] = trap
                continue
            trap.spring()
            if trap.when == "before":
                return False
        return True

    def _answered(self, verb: bytes, fields: list[str], _: bytes, __: bytes) -> bool:
        """Whether a message of the broker passes."""
        if verb in (b"MSG", b"HMSG") and fields[0] in self._mute:
            self._mute.pop(fields[0]).spring()
            return False
        return True


@dataclass(slots=True)
class _Frames:
    """The messages in a stream of the NATS client protocol, and what passes of it: without a judge
    everything, unread."""

    judge: Callable[[bytes, list[str], bytes, bytes], bool] | None
    rest: bytes = b""

    def passed(self, data: bytes) -> bytes:
        """What of all that has come whole shall be passed on."""
        if self.judge is None:
            return data
        out, data, at = [], self.rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            verb, _, line = data[at:end].partition(b" ")
            verb, fields, body = verb.upper(), line.decode(errors="replace").split(), end + 2
            headers = payload = b""
            if verb in (b"PUB", b"HPUB", b"MSG", b"HMSG"):
                size = int(fields[-1])
                if len(data) < body + size + 2:
                    break
                head = int(fields[-2]) if verb in (b"HPUB", b"HMSG") else 0
                headers, payload = data[body : body + head], data[body + head : body + size]
                body += size + 2
            if self.judge(verb, fields, headers, payload):
                out.append(data[at:body])
            at = body
        self.rest = data[at:]
        return b"".join(out)


def _header(headers: bytes, name: bytes) -> bytes:
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == name.lower():
            return value.strip()
    return b""


def event(kind: str, source: str = "") -> Callable[[Published], bool]:
    """Catches events of a type, of one source or of all."""

    def catches(message: Published) -> bool:
        found = message.event
        return found.get("type") == kind and source in ("", found.get("source"))

    return catches


def chunk(message: Published) -> bool:
    """Catches a piece of a blob on its way to the broker."""
    return ".ev." not in message.subject and len(message.payload) > 1000


@contextlib.asynccontextmanager
async def tapped(
    url: str,
    delay_s: float = 0.0,
    node: Path | None = None,
    at: tuple[str, int] = ("127.0.0.1", 0),
) -> AsyncIterator[Tap]:
    """A tap before the broker at `url`, of which each server gets a port: free ones of this
    machine, or the address `at`."""
    tap, places = Tap(delay_s, node), list[str]()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.sleep, 0.01)
        stack.callback(tap.cut)
        for target in url.split(","):
            server = await asyncio.start_server(partial(tap.relay, target), *at)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()
            places.append(f"{urlsplit(target).scheme}://{host}:{port}")
        tap.url = ",".join(places)
        yield tap
