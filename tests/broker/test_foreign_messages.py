"""What anybody who may publish can put into a run's stream: it is read, and hinders nobody."""

from __future__ import annotations

import asyncio

import pytest

from broker.connection import Connection
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import MAX_PAYLOAD_BYTES
from tests.contract.events import tick
from tests.contract.log_contract import collect

HEADERS = (
    b"\r\n",  # too short for the client's own parser
    b"NATS/1.0 404 No Messages\r\n\r\n",  # these look like what the server itself says
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: many\r\n\r\n",
    b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
    b"NATS/1.0\r\nStatus: 100\r\nNats-Last-Consumer: many\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n",
    b"GARBAGE\r\n\r\n",
)


async def publish(url: str, subject: bytes, header: bytes, data: bytes) -> bytes:
    """Publish in the protocol's own words, as no client would; the stream's answer."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    sizes = b"%d %d" % (len(header), len(header) + len(data))
    writer.write(
        b'CONNECT {"verbose":false,"headers":true}\r\nSUB answer 1\r\n'
        b"HPUB " + subject + b" answer " + sizes + b"\r\n" + header + data + b"\r\n"
    )
    async with asyncio.timeout(10):
        while not (line := await reader.readline()).startswith((b'{"stream"', b"-ERR")):
            assert line, "the broker hung up"
    writer.close()
    return line


@pytest.mark.parametrize("header", HEADERS)
async def test_no_header_of_a_message_stops_those_who_read(
    broker: BrokerServer, connection: Connection, run_name: str, header: bytes
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(1)], 0)
    subject = f"atoll.{run_name}.ev.site.alpha".encode()
    assert b'"seq":2' in await publish(broker.url, subject, header, b"not an event")
    await log.append("coordinator", [tick(2)], 1)
    async with asyncio.timeout(10):
        assert [record.sequence for record in await log.read(0)] == [1, 2, 3]
        assert [record.sequence for record in await collect(log.follow(0), 3)] == [1, 2, 3]
    assert (await log.read(1))[0].payload == b"not an event"
    assert connection.num_breaks == 0


@pytest.mark.parametrize(
    "token", [b"\xff", b"\xe2\x82a", "Ä".encode(), b"x" * 3000, b"a.b.c.d", b"\x00"]
)
async def test_no_subject_of_a_message_stops_those_who_read(
    broker: BrokerServer, connection: Connection, run_name: str, token: bytes
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(1)], 0)
    subject = f"atoll.{run_name}.ev.site.".encode() + token
    assert b'"seq":2' in await publish(broker.url, subject, b"NATS/1.0\r\n\r\n", b"not an event")
    await log.append("coordinator", [tick(2)], 1)
    async with asyncio.timeout(10):
        records = await log.read(0)
    assert [record.sequence for record in records] == [1, 2, 3]
    assert await log.at(2) == records[1]
    assert connection.num_breaks == 0


async def test_no_size_of_a_message_stops_those_who_read(
    broker: BrokerServer, connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(1)], 0)
    header = b"NATS/1.0\r\n\r\n"
    largest = b"z" * (MAX_PAYLOAD_BYTES - len(header))
    subject = f"atoll.{run_name}.ev.site.alpha".encode()
    assert b'"seq":2' in await publish(broker.url, subject, header, largest)
    await log.append("coordinator", [tick(2)], 1)
    async with asyncio.timeout(10):
        records = await log.read(0)
        assert [record.sequence for record in await collect(log.follow(0), 3)] == [1, 2, 3]
    assert [record.payload == largest for record in records] == [False, True, False]
