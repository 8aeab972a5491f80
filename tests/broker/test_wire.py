"""Large messages past the client: whatever the pieces they come in, and beside everything else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from broker.client import Message, Outgoing
from broker.wire import LARGE_BYTES, Wire, read_headers


class Client(asyncio.StreamReaderProtocol):
    """The client's own end, which keeps what passes on to it."""

    def __init__(self) -> None:
        super().__init__(asyncio.StreamReader())
        self.passed = b""

    def data_received(self, data: bytes) -> None:
        self.passed += data


class Writer:
    """A connected stream as far as `Wire` uses one."""

    def __init__(self, client: Client) -> None:
        self.transport, self.client, self.wrote = self, client, b""

    def get_protocol(self) -> Client:
        return self.client

    def set_protocol(self, _: object) -> None:
        pass

    async def drain(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.wrote += data


def pieces(data: bytes, dice: random.Random) -> Iterator[bytes]:
    while data:
        num = dice.choice([1, 3, 100, 5000, LARGE_BYTES, 1 << 20])
        yield data[:num]
        data = data[num:]


def feed(wire: Wire, data: bytes) -> None:
    """As a socket does: into the buffer it is given, as much as fits."""
    while data:
        buffer = wire.get_buffer(-1)
        num = min(len(buffer), len(data))
        buffer[:num] = data[:num]
        wire.buffer_updated(num)
        data = data[num:]


@pytest.mark.parametrize("seed", range(12))
async def test_messages_for_us_come_whole_and_in_order_and_the_rest_passes_on(seed: int) -> None:
    dice = random.Random(seed)
    client, taken, heard = Client(), [], 0

    def hear() -> None:
        nonlocal heard
        heard += 1

    wire = Wire(Writer(client), 7, taken.append, hear)  # type: ignore[arg-type]
    wanted: list[Message] = []
    sent = passing = b""
    for number in range(40):
        body = dice.randbytes(dice.choice([0, 5, 3000, LARGE_BYTES, 300_000]))
        kind = dice.randrange(5)
        if kind == 0:
            block = b"NATS/1.0\r\nNats-Sequence: %d\r\n\r\n" % number
            sizes = b"%d %d" % (len(block), len(block) + len(body))
            sent += b"HMSG in.%d 7 %s\r\n%s%s\r\n" % (number, sizes, block, body)
            wanted.append(Message(f"in.{number}", "", {"Nats-Sequence": str(number)}, body))
        elif kind == 1:
            sent += b"MSG in.%d 7 re.ply %d\r\n%s\r\n" % (number, len(body), body)
            wanted.append(Message(f"in.{number}", "", {}, body))
        else:
            foreign = b"MSG other 8 %d\r\n%s\r\n" % (len(body), body)
            line = dice.choice([b"PING\r\n", b"PONG\r\n", b"-ERR 'x'\r\n", foreign])
            sent, passing = sent + line, passing + line
    for piece in pieces(sent, dice):
        before = heard
        feed(wire, piece)
        assert heard > before
    assert taken == wanted
    assert client.passed == passing


async def test_a_message_is_written_as_the_protocol_asks() -> None:
    writer = Writer(Client())
    wire = Wire(writer, 1, lambda _: None, lambda: None)  # type: ignore[arg-type]
    await wire.send(Outgoing("a.b", b"data", {"Key": "0"}, "re.ply"))
    await wire.send(Outgoing("a.b", b"data"))
    block = b"NATS/1.0\r\nKey: 0\r\n\r\n"
    head = b"HPUB a.b re.ply %d %d\r\n" % (len(block), len(block) + 4)
    assert writer.wrote == head + block + b"data\r\n" + b"PUB a.b 4\r\ndata\r\n"


def test_a_status_is_read_beside_other_headers() -> None:
    assert read_headers(b"NATS/1.0 404 Message Not Found\r\n\r\n") == {
        "Status": "404",
        "Description": "Message Not Found",
    }
    assert read_headers(b"NATS/1.0\r\nA: b\r\nC:d: e\r\n\xff: x\r\n\r\n") == {
        "A": "b",
        "C": "d: e",
        "\ufffd": "x",
    }
