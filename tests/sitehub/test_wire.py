"""Messages between hub and trainer arrive whole, or the stream's error says why."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sitehub.wire import (
    MAX_MESSAGE_BYTES,
    Message,
    WireInvalid,
    async_read,
    async_write,
    read_message,
    write_message,
)

MESSAGES: list[Message] = [{"do": "exit"}, {}, {"tag": [1, "a", None, 1.5, b"x" * 100_000]}]
BAD = {
    b"\x00\x00": "within the length",
    struct.pack(">I", 10) + b"abc": "after 3 of a message's 10 bytes",
    struct.pack(">I", MAX_MESSAGE_BYTES + 1): f"{MAX_MESSAGE_BYTES + 1} bytes",
    struct.pack(">I", 1) + b"\xc1": "cannot be read",
    struct.pack(">I", 1) + b"\x90": "no map but list",
}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    yield a, b
    a.close()
    b.close()


def test_messages_come_in_order_and_then_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    def send() -> None:
        for message in MESSAGES:
            write_message(pair[0], message)
        pair[0].close()

    sender = threading.Thread(target=send)
    sender.start()
    assert [read_message(pair[1]) for _ in MESSAGES] == MESSAGES
    assert read_message(pair[1]) is None
    sender.join()


@pytest.mark.parametrize(("data", "why"), BAD.items())
def test_torn_or_foreign_bytes_are_named(
    data: bytes, why: str, pair: tuple[socket.socket, socket.socket]
) -> None:
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(WireInvalid, match=why):
        read_message(pair[1])


@pytest.mark.parametrize(("data", "why"), BAD.items())
async def test_torn_or_foreign_bytes_are_named_by_the_hub_too(data: bytes, why: str) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    with pytest.raises(WireInvalid, match=why):
        await async_read(reader)


async def test_hub_and_trainer_sides_understand_each_other(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (message := await async_read(reader)) is not None:
            await async_write(writer, message)
        writer.close()

    def trainer() -> list[Message | None]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(tmp_path / "s"))
            answers = []
            for message in MESSAGES:
                write_message(sock, message)
                answers.append(read_message(sock))
            return answers

    server = await asyncio.start_unix_server(echo, tmp_path / "s")
    async with server:
        assert await asyncio.to_thread(trainer) == MESSAGES


def test_too_long_a_message_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(WireInvalid, match="at most"):
        write_message(pair[0], {"x": b"0" * MAX_MESSAGE_BYTES})


def test_a_path_may_be_any_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    message = {"log": os.fsdecode(b"/data/\xff\xc3\xbc")}
    write_message(pair[0], message)
    assert read_message(pair[1]) == message
