"""Three real servers: what was acknowledged is there once, whoever is killed; and one comes back
from nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api import is_leaders
from broker.connection import Connection
from broker.errors import BrokerUnreachable
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from eventlog.errors import LogUnavailable
from tests.support.secured import Cluster, clustered
from tests.support.three import Leading, caught_up, leader

RUN = "three"
MAX_GAP_S = 10.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with clustered(tmp_path / "cluster") as made:
        yield made


class Load:
    """Appends one after another, for ever; remembers what was acknowledged, and when."""

    def __init__(self, log: JetStreamLog) -> None:
        self.log, self.stored = log, dict[int, bytes]()
        self.gap_s, self._last = 0.0, time.monotonic()
        self._end = False

    async def run(self) -> None:
        sequence = number = 0
        while not self._end:
            number += 1
            body = b"event %d" % number
            sequence = await self.log.append("coordinator", [body], sequence)
            self.stored[sequence] = body
            now = time.monotonic()
            self.gap_s, self._last = max(self.gap_s, now - self._last), now

    async def grow(self, num: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.stored) + num
        async with asyncio.timeout(60):
            while len(self.stored) < wanted:
                await asyncio.sleep(0.02)

    async def stop(self, task: asyncio.Task[None]) -> None:
        self._end = True
        await task


async def began(cluster: Cluster) -> tuple[Connection, JetStreamLog, JetStreamLog]:
    operator = await cluster.connect("operator")
    log = await JetStreamLog.create(operator, RUN)
    writer = await cluster.connect("coordinator")
    return operator, log, await JetStreamLog.open(writer, RUN)


async def check(load: Load, log: JetStreamLog) -> None:
    """Everything acknowledged is there, where it was said to be, once."""
    records = await log.read(0, limit=1_000_000)
    bodies = [record.payload for record in records]
    assert len(bodies) == len(set(bodies)), "an event is there twice"
    assert load.stored.items() <= {one.sequence: one.payload for one in records}.items()


async def test_a_leader_killed_under_load_loses_and_doubles_nothing(cluster: Cluster) -> None:
    operator, log, written = await began(cluster)
    load = Load(written)
    task = asyncio.create_task(load.run())
    await load.grow(50)
    cluster.servers[await leader(operator, RUN)].kill()
    await load.grow(50)
    await load.stop(task)
    print(f"{len(load.stored)} appends; the longest time without an answer {load.gap_s:.2f} s")
    assert load.gap_s < MAX_GAP_S
    await check(load, log)
    await operator.close()


@pytest.mark.parametrize(
    ("cluster", "is_so"),
    [
        ({"leader": "n1", "replicas": [{"name": "n2"}, {"name": "n3"}]}, True),
        ({"leader": "n1"}, True),  # the only copy
        (None, True),  # a broker of one server
        # n3, which came back with nothing: before, and while, it finds the others
        ({"replicas": [{"name": "n1"}, {"name": "n2"}, {"name": "n3"}]}, False),
        ({"leader": "n1", "replicas": [{"name": "n1"}, {"name": "n2"}]}, False),
        ({"replicas": [{"name": "n1"}, {"name": "n2"}]}, False),
    ],
)
def test_whether_the_leader_of_a_stream_answered(
    cluster: dict[str, object] | None, is_so: bool
) -> None:
    assert is_leaders({"state": {"last_seq": 0}, "cluster": cluster}) == is_so


async def test_a_server_that_lost_its_disk_passes_nothing_off_as_the_log(cluster: Cluster) -> None:
    operator, _, written = await began(cluster)
    await JetStreamBlobs.create(operator, RUN)
    last = await written.append("coordinator", [b"event"] * 20, 0)
    async with Leading.of(cluster, RUN) as leading:
        await leading.whole()  # its leader is the one that was chosen when the stream was made
        leading.kill()
        leading.empty()
        leading.start()
        host = cluster.HOSTS[leading.name]
        whole = asyncio.create_task(leading.whole())
        num_reads = 0
        while not (whole.done() and num_reads):
            with contextlib.suppress(BrokerUnreachable, LogUnavailable):
                async with await cluster.connect("auditor", host=host) as there:
                    log = JetStreamLog(there, RUN, patience_s=1.0)
                    while not (whole.done() and num_reads):
                        assert await log.read(last - 1), "the last event"
                        num_reads += 1
            await asyncio.sleep(0.05)
        await whole
    assert num_reads
    await operator.close()


@pytest.mark.soak
async def test_each_in_turn_is_killed_and_one_is_rebuilt_from_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    operator, log, written = await began(cluster)
    blobs = await JetStreamBlobs.create(operator, RUN)
    (tmp_path / "blob").write_bytes(b"snapshot" * 2_000_000)
    ref = await blobs.put(tmp_path / "blob")
    load = Load(written)
    task = asyncio.create_task(load.run())
    await load.grow(50)
    first = await leader(operator, RUN)
    cluster.servers[first].kill()
    await load.grow(100)
    cluster.rebuild(first)
    await caught_up(operator, RUN)
    for name in cluster.servers:
        if name != first:  # the rebuilt one is needed for every majority now
            cluster.servers[name].kill()
            await load.grow(50)
            cluster.servers[name].start()
            await caught_up(operator, RUN)
    await load.stop(task)
    await check(load, log)
    await blobs.get(ref.digest, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "blob").read_bytes()
    print(f"{len(load.stored)} appends; the longest time without an answer {load.gap_s:.2f} s")
    assert load.gap_s < 3 * MAX_GAP_S
    await operator.close()
