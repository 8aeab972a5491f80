"""Large messages past the client: straight from the socket, and straight to it.

The client copies every byte several times, in pieces of 32 KiB, on the one core that the event loop
has. On a link for bulk we therefore take the place of its protocol on its own transport (TCP or
TLS): answers to our requests are read into one buffer, large messages are written as they are, and
everything else, pings too, passes on to the client as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.client import Message, Outgoing

LARGE_BYTES = 64 << 10  # of a message that is worth it
_KINDS = (b"MSG ", b"HMSG")
_VERSION = "NATS/1.0"


class Wire(asyncio.BufferedProtocol):
    """`take` gets what comes for the subscription `sid`; the client gets the rest. `heard` is told
    of everything."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        sid: int,
        take: Callable[[Message], None],
        heard: Callable[[], None],
    ) -> None:
        self._writer, self._sid, self._take = writer, str(sid).encode(), take
        self._heard = heard
        self._small = memoryview(bytearray(LARGE_BYTES))
        self._large = memoryview(bytearray())
        self._rest = b""  # a line, or a small message, that has not come whole
        self._fields: list[bytes] = []  # of the message that is being read into `_large`
        self._got = self._size = 0
        transport = writer.transport
        client = transport.get_protocol()
        assert isinstance(client, asyncio.StreamReaderProtocol)
        self._client = client
        transport.set_protocol(self)

    async def send(self, *messages: Outgoing) -> None:
        """Write messages in order, once there is room. Raises OSError."""
        await self._writer.drain()
        for message in messages:
            for piece in (_head(message), memoryview(message.data), b"\r\n"):
                self._writer.write(piece)

    # -- called by the transport ------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._large[self._got : self._size] if self._size else self._small

    def buffer_updated(self, nbytes: int) -> None:
        self._heard()
        if not self._size:
            return self._read(self._rest + bytes(self._small[:nbytes]))
        self._got += nbytes
        if self._got == self._size:
            size, self._size = self._size, 0
            self._deliver(self._fields, self._large[: size - 2])
        return None

    def eof_received(self) -> bool | None:
        return self._client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        """Take the messages for us out of what came, and pass on the rest."""
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            body = after = end + 2
            if data[at : at + 4].upper() in _KINDS:
                fields = data[at:end].split()
                size = int(fields[-1]) + 2
                after = body + size
                ours = fields[2] == self._sid
                if len(data) < after:
                    if not ours:
                        break
                    return self._begin(fields, size, data[body:])
                if ours:
                    self._deliver(fields, memoryview(data)[body : after - 2])
                    at = after
                    continue
            self._client.data_received(data[at:after])
            at = after
        self._rest = data[at:]

    def _begin(self, fields: list[bytes], size: int, start: bytes) -> None:
        """From here on the socket is read into the buffer of this message."""
        if len(self._large) < size:
            self._large = memoryview(bytearray(size))
        self._large[: len(start)] = start
        self._fields, self._size, self._got, self._rest = fields, size, len(start), b""

    def _deliver(self, fields: list[bytes], data: memoryview) -> None:
        """MSG <subject> <sid> [reply] <bytes>, HMSG ... <bytes of headers> <bytes>."""
        split = int(fields[-2]) if fields[0].upper() == b"HMSG" else 0
        headers = read_headers(bytes(data[:split])) if split else {}
        subject = fields[1].decode(errors="replace")
        self._take(Message(subject, "", headers, bytes(data[split:])))


def _head(message: Outgoing) -> bytes:
    """What precedes a message's data."""
    fields = " ".join(filter(None, (message.subject, message.reply)))
    num_bytes = len(message.data)
    if not message.headers:
        return f"PUB {fields} {num_bytes}\r\n".encode()
    pairs = "".join(f"{key}: {value}\r\n" for key, value in message.headers.items())
    block = f"{_VERSION}\r\n{pairs}\r\n".encode()
    return f"HPUB {fields} {len(block)} {len(block) + num_bytes}\r\n".encode() + block


def read_headers(block: bytes) -> dict[str, str]:
    """The headers of a message; of the first line, what follows the version is `Status` and
    `Description`. What is no UTF-8 becomes U+FFFD."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    headers = {"Status": status, "Description": description.strip()} if status else {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            headers[key.strip()] = value.strip()
    return headers
