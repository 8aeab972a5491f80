"""How hub and trainer talk: msgpack maps on a unix socket, each after its length (u32, big-endian).

Both sides are ours and on one machine; the bound on a message's size and the checks on its form
are there so that a stray client or a torn stream ends in one clear error, not in a full memory.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import msgpack

from eventlog.errors import AtollError

MAX_MESSAGE_BYTES = 4 << 20  # tensors travel as files, so nothing here is large
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class WireInvalid(AtollError):
    """The bytes on the socket are no message: torn, too long, or no map."""


def write_message(sock: socket.socket, message: Message) -> None:
    """Send one message, whole. Raises WireInvalid if it is too long, OSError from the socket."""
    sock.sendall(_frame(message))


def read_message(sock: socket.socket) -> Message | None:
    """The next message; None at the end of the stream. Raises WireInvalid, OSError."""
    head = _receive(sock, _LENGTH.size)
    if not head:
        return None
    body = _receive(sock, _body_bytes(head))
    return _parse(body, _body_bytes(head))


async def async_write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send one message and wait until the transport takes more. Raises WireInvalid, OSError."""
    writer.write(_frame(message))
    await writer.drain()


async def async_read(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end of the stream. Raises WireInvalid, OSError."""
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise WireInvalid("the stream ended within the length of a message") from None
    num_bytes = _body_bytes(head)
    try:
        return _parse(await reader.readexactly(num_bytes), num_bytes)
    except asyncio.IncompleteReadError as error:
        raise _torn(len(error.partial), num_bytes) from None


def _frame(message: Message) -> bytes:
    body = msgpack.packb(message, unicode_errors="surrogateescape")  # a path may be any bytes
    if len(body) > MAX_MESSAGE_BYTES:
        raise WireInvalid(f"a message of {len(body)} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    return _LENGTH.pack(len(body)) + body


def _body_bytes(head: bytes) -> int:
    if len(head) < _LENGTH.size:
        raise WireInvalid("the stream ended within the length of a message")
    num_bytes: int = _LENGTH.unpack(head)[0]
    if num_bytes > MAX_MESSAGE_BYTES:
        raise WireInvalid(f"a message of {num_bytes} bytes; at most {MAX_MESSAGE_BYTES} are read")
    return num_bytes


def _parse(body: bytes, num_bytes: int) -> Message:
    if len(body) < num_bytes:
        raise _torn(len(body), num_bytes)
    try:
        message = msgpack.unpackb(body, unicode_errors="surrogateescape")
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireInvalid(f"a message that cannot be read: {error}") from error
    if not isinstance(message, dict):
        raise WireInvalid(f"a message that is no map but {type(message).__name__}")
    return message


def _torn(got: int, expected: int) -> WireInvalid:
    return WireInvalid(f"the stream ended after {got} of a message's {expected} bytes")


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    """Up to num_bytes: fewer only where the stream ended."""
    chunks, missing = [], num_bytes
    while missing and (chunk := sock.recv(missing)):
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
