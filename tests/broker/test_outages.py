"""What a lost answer, a cut link and a killed broker change: nothing that is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.api import ask
from broker.connection import Connection, connect
from broker.feed import BUFFER_BYTES, Feed
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from broker.streams import log_stream
from eventlog.config import Timing
from eventlog.errors import BlobUnavailable, Conflict, LogUnavailable
from tests.contract.events import beat, tick
from tests.contract.log_contract import collect
from tests.support.proxy import Proxy


@pytest.mark.parametrize("lose", ["link", "answers"])
@pytest.mark.parametrize("num_events", [1, 40])
async def test_an_append_whose_answer_is_lost_is_stored_once(
    proxy: Proxy,
    lossy: Connection,
    run_name: str,
    monkeypatch: pytest.MonkeyPatch,
    lose: str,
    num_events: int,
) -> None:
    monkeypatch.setattr("broker.appender.ANSWER_S", 0.4)
    log = await JetStreamLog.create(lossy, run_name)
    await log.append("site.a", [beat("a", 1)], 0)
    bodies = [tick(n) for n in range(1, num_events + 1)]
    proxy.watch, proxy.lose, proxy.num_losses = f"{run_name}.ev.coordinator".encode(), lose, 2
    assert await log.append("coordinator", bodies, 0) == num_events + 1
    assert proxy.num_lost >= 1
    assert [r.payload for r in await log.read(1)] == bodies


async def test_r8_a_lost_answer_does_not_silence_a_site_for_as_long_as_its_lease(
    proxy: Proxy, lossy: Connection, run_name: str
) -> None:
    """The shortest lease is four heartbeats of 1 s; with one answer lost there is time for more."""
    log = await JetStreamLog.create(lossy, run_name)
    proxy.watch, proxy.lose, proxy.num_losses = b"ev.site.a", "answers", 1
    async with asyncio.timeout(2 * Timing.MIN_HEARTBEAT_S + 1.0):
        assert await log.append("site.a", [beat("a", 1)], 0) == 1
    assert proxy.num_lost == 1


async def test_a_batch_that_is_cut_in_the_middle_is_stored_whole_by_the_retry(
    proxy: Proxy, lossy: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(lossy, run_name)
    bodies = [tick(n) for n in range(1, 401)]
    proxy.watch, proxy.num_losses = b"Nats-Batch-Sequence: 200\r\n", 1
    assert await log.append("coordinator", bodies, 0) == 400
    assert proxy.num_lost == 1
    assert [r.payload for r in await log.read(0)] == bodies


async def test_an_append_that_lost_its_race_while_the_link_was_cut_is_a_conflict(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str
) -> None:
    mine, theirs = await JetStreamLog.create(lossy, run_name), JetStreamLog(connection, run_name)
    assert await theirs.append("coordinator", [tick(1)], 0) == 1
    proxy.watch, proxy.num_losses = b"ev.coordinator", 1
    with pytest.raises(Conflict) as caught:
        await mine.append("coordinator", [tick(2)], 0)
    assert caught.value.actual == 1
    assert await theirs.last_sequence() == 1


async def test_batches_are_side_by_side_while_others_hammer(
    connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    stop = asyncio.Event()

    async def hammer(site: str) -> int:
        last = num = 0
        while not stop.is_set():
            last, num = await log.append(f"site.{site}", [beat(site, num + 1)], last), num + 1
        return num

    hammers = [asyncio.create_task(hammer(f"s{n}")) for n in range(4)]
    last, ends = 0, []
    for _ in range(20):
        last = await log.append("coordinator", [tick(n) for n in range(1, 51)], last)
        ends.append(last)
    with pytest.raises(Conflict):
        await log.append("coordinator", [tick(n) for n in range(1, 51)], last - 1)
    stop.set()
    num_single = sum(await asyncio.gather(*hammers))
    records = await log.read(0, limit=100_000)
    assert [r.sequence for r in records] == list(range(1, 20 * 50 + num_single + 1))
    assert num_single >= 20
    mine = [r.sequence for r in records if r.subject == "coordinator"]
    assert mine == [n for end in ends for n in range(end - 49, end + 1)]


async def test_a_killed_broker_loses_nothing_and_everybody_goes_on(
    tmp_path: Path, run_name: str
) -> None:
    server = BrokerServer(ServerSettings(tmp_path), die_with_parent=True)
    server.start()
    async with await connect(server.url, name="tests") as connection:
        log = await JetStreamLog.create(connection, run_name)
        follower = log.follow(0)
        following = asyncio.create_task(collect(follower, 300))
        acknowledged: list[int] = []

        async def write() -> None:
            last = 0
            for number in range(1, 101):
                bodies = [tick(number), tick(number), tick(number)]
                last = await log.append("coordinator", bodies, last)
                acknowledged.append(last)

        writing = asyncio.create_task(write())
        for num_before in (20, 60):
            while len(acknowledged) < num_before:
                await asyncio.sleep(0.001)
            server.kill()
            await asyncio.sleep(0.2)
            server.start()
        async with asyncio.timeout(20):
            await writing
            seen = await following
        assert acknowledged == list(range(3, 301, 3))
        assert [record.sequence for record in seen] == list(range(1, 301))
        assert seen == await log.read(0)
        assert connection.num_breaks == 2
        await log.close()
    server.stop()


async def test_a_broker_that_stays_away_is_reported_in_bounded_time(
    tmp_path: Path, run_name: str
) -> None:
    server = BrokerServer(ServerSettings(tmp_path), die_with_parent=True)
    server.start()
    (tmp_path / "blob").write_bytes(b"content")
    async with await connect(server.url, name="tests") as connection:
        log = await JetStreamLog.create(connection, run_name, patience_s=0.5)
        blobs = await JetStreamBlobs.create(connection, run_name, patience_s=0.5)
        waiting = asyncio.create_task(anext(log.follow(0), None))
        server.kill()
        async with asyncio.timeout(10):
            with pytest.raises(LogUnavailable, match="stored or not"):
                await log.append("coordinator", [tick(1)], 0)
            with pytest.raises(LogUnavailable):
                await log.read(0)
            with pytest.raises(BlobUnavailable):
                await blobs.put(tmp_path / "blob")
            await log.close()
            assert await waiting is None


async def test_a_follower_whose_consumer_is_removed_goes_on_from_its_position(
    connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(1)], 0)
    follower = log.follow(0)
    assert [r.sequence for r in await collect(follower, 1)] == [1]
    waiting = asyncio.create_task(collect(follower, 1))
    await asyncio.sleep(0.05)
    stream = log_stream(run_name)
    for name in (await ask(connection.control, f"CONSUMER.NAMES.{stream}"))["consumers"]:
        await ask(connection.control, f"CONSUMER.DELETE.{stream}.{name}")
    await log.append("coordinator", [tick(2)], 1)
    assert [r.sequence for r in await waiting] == [2]
    await log.close()


async def test_a_follower_that_hears_nothing_any_more_starts_anew(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str
) -> None:
    """The link stands, but what the broker says is lost: messages and heartbeats alike."""
    await JetStreamLog.create(connection, run_name)
    log = await JetStreamLog.open(lossy, run_name, heartbeat_s=0.2)
    writer = JetStreamLog(connection, run_name)
    await writer.append("coordinator", [tick(1)], 0)
    follower = log.follow(0)
    await collect(follower, 1)
    waiting = asyncio.create_task(collect(follower, 2))
    await asyncio.sleep(0.05)
    proxy.watch, proxy.lose, proxy.num_losses, proxy.silence_s = b"$JS.API.INFO", "answers", 1, 0.4
    asking = asyncio.create_task(ask(lossy.control, "INFO"))
    await asyncio.sleep(0.05)
    await writer.append("coordinator", [tick(2)], 1)
    await asyncio.sleep(0.5)
    await writer.append("coordinator", [tick(3)], 2)
    assert [r.sequence for r in await waiting] == [2, 3]
    assert (lossy.num_breaks, proxy.num_lost) == (0, 1)
    asking.cancel()
    await log.close()


async def test_a_reader_holds_a_bounded_part_of_a_large_log(
    connection: Connection, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    last, body = 0, bytes(500_000)
    for _ in range(20):
        last = await log.append("coordinator", [body] * 5, last)
    session = await connection.control.session(5)
    feed = await Feed.open(session, log_stream(run_name), [], 0)
    taken = held = 0
    while taken < 100:
        await asyncio.sleep(0.1)  # a slow fold
        batch = await feed.next()
        taken, held = taken + len(batch), max(held, sum(len(d.data) for d in batch))
    await feed.close()
    assert held <= BUFFER_BYTES + (12 << 20)
    assert len(await log.read(0)) == 100
