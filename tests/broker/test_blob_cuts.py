"""Blobs over links that are cut again and again, brokers and processes that are killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from broker.api import ask
from broker.connection import Connection, connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.server import BrokerServer
from broker.settings import ServerSettings
from broker.streams import blob_stream
from eventlog.blobs import CHUNK_BYTES, Progress
from tests.support.proxy import Proxy

NUM_CHUNKS = 40
NUM_BYTES = NUM_CHUNKS * CHUNK_BYTES - 12345
NUM_CUTS = 10
WINDOW_BYTES = JetStreamBlobs.WINDOW * CHUNK_BYTES
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("content") / "source"
    path.write_bytes(random.Random(7).randbytes(NUM_BYTES))
    return path


def cuts_at_random(seed: int, start: int) -> list[int]:
    """Ten places in the course of a transfer that begins at so many bytes."""
    places = random.Random(seed).sample(range(CHUNK_BYTES, NUM_BYTES - CHUNK_BYTES), NUM_CUTS)
    return sorted(start + place for place in places)


async def stored(connection: Connection, run: str) -> tuple[int, int]:
    """(messages, last sequence): equal where nothing was ever stored and removed."""
    info = await ask(connection.control, f"STREAM.INFO.{blob_stream(run)}")
    return info["state"]["messages"], info["state"]["last_seq"]


async def test_ten_cuts_of_an_upload_and_of_a_download_store_and_fetch_everything_once(
    proxy: Proxy,
    lossy: Connection,
    connection: Connection,
    run_name: str,
    source: Path,
    tmp_path: Path,
) -> None:
    store = await JetStreamBlobs.create(lossy, run_name)
    proxy.cuts = cuts_at_random(1, proxy.num_bytes)
    before = proxy.num_up
    ref = await store.put(source)
    assert proxy.num_cuts == NUM_CUTS
    assert await stored(connection, run_name) == (NUM_CHUNKS + 1, NUM_CHUNKS + 1)
    again = proxy.num_up - before - NUM_BYTES
    assert again <= NUM_CUTS * WINDOW_BYTES // 2, "a cut costs what was on its way, no more"

    proxy.cuts = cuts_at_random(2, proxy.num_bytes)
    before = proxy.num_bytes
    await store.get(ref.digest, tmp_path / "target")
    assert proxy.num_cuts == 2 * NUM_CUTS
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert proxy.num_bytes - before - NUM_BYTES <= NUM_CUTS * WINDOW_BYTES // 2


async def test_a_chunk_whose_answer_was_lost_is_not_sent_again(
    proxy: Proxy, lossy: Connection, run_name: str, tmp_path: Path
) -> None:
    """The broker has it: a small question finds that out."""
    store = await JetStreamBlobs.create(lossy, run_name)
    (tmp_path / "one").write_bytes(random.Random(3).randbytes(20_000))  # passes in one piece
    proxy.watch, proxy.num_losses = b".0.any ", 1
    proxy.counted = f"HPUB atoll.{run_name}.blob.".encode()
    await store.put(tmp_path / "one")
    assert proxy.num_lost == 1
    assert proxy.num_seen == 2, "the chunk, and the list of chunks"


async def test_sigkill_of_the_broker_in_the_middle_of_both(source: Path, tmp_path: Path) -> None:
    with BrokerServer(ServerSettings(tmp_path / "broker"), die_with_parent=True) as server:
        async with await connect(server.url, name="mover") as connection:
            store = await JetStreamBlobs.create(connection, "run-a")
            kills: list[float] = []

            def killing(at: float) -> Progress:
                def report(done: int, total: int) -> None:
                    if done > at * total and at not in kills:
                        kills.append(at)
                        server.kill()
                        server.start()

                return report

            ref = await store.put(source, killing(0.3))
            assert await stored(connection, "run-a") == (NUM_CHUNKS + 1, NUM_CHUNKS + 1)
            await store.get(ref.digest, tmp_path / "target", killing(0.4))
            assert kills == [0.3, 0.4]
            assert (tmp_path / "target").read_bytes() == source.read_bytes()


async def test_a_killed_process_is_followed_by_one_that_moves_only_the_rest(
    broker: BrokerServer,
    proxy: Proxy,
    lossy: Connection,
    connection: Connection,
    run_name: str,
    source: Path,
    tmp_path: Path,
) -> None:
    target = tmp_path / "target"
    store = await JetStreamBlobs.create(lossy, run_name)
    kill_in_the_middle(broker.url, run_name, "put", source)
    await asyncio.sleep(0.3)  # what was on its way arrives
    (num_there, _), unfinished = await stored(connection, run_name), await store.unfinished()
    assert 3 <= num_there < NUM_CHUNKS
    assert list(unfinished.values()) == [num_there]
    assert await store.digests() == []
    proxy.counted = f"HPUB atoll.{run_name}.blob.".encode()
    ref = await store.put(source)
    assert proxy.num_seen == NUM_CHUNKS - num_there + 1
    assert await store.unfinished() == {}

    kill_in_the_middle(broker.url, run_name, "get", target, ref.digest)
    assert not target.exists()
    data, part = source.read_bytes(), (tmp_path / "target.part").read_bytes()
    starts = range(0, len(data), CHUNK_BYTES)
    num_held = sum(part[n : n + CHUNK_BYTES] == data[n : n + CHUNK_BYTES] for n in starts)
    assert 3 <= num_held < NUM_CHUNKS
    proxy.counted, proxy.num_seen = b"DIRECT.GET", 0
    await store.get(ref.digest, target)
    assert proxy.num_seen == 1 + NUM_CHUNKS - num_held
    assert target.read_bytes() == data


def kill_in_the_middle(url: str, run: str, *what: object) -> None:
    """SIGKILL to a process that moves a blob, after its third chunk."""
    command = [sys.executable, "-m", "tests.support.mover", url, run, *map(str, what)]
    rate = ["--rate", str(8 * CHUNK_BYTES)]  # the kill must not come too late
    with subprocess.Popen([*command, *rate], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert b" of " in process.stdout.readline()
        process.kill()


async def test_a_release_in_the_middle_of_a_put_leaves_a_whole_blob_or_none(
    connection: Connection, run_name: str, source: Path, tmp_path: Path
) -> None:
    """What the release took away behind the put's back is stored again."""
    store = await JetStreamBlobs.create(connection, run_name)
    first = asyncio.Event()
    half = asyncio.create_task(store.put(source, lambda done, _: first.set()))
    await first.wait()
    half.cancel()
    await asyncio.gather(half, return_exceptions=True)
    (digest,) = await store.unfinished()
    releases: list[asyncio.Task[None]] = []

    def release(done: int, total: int) -> None:
        if done > total // 2 and not releases:
            releases.append(asyncio.ensure_future(store.release([digest])))

    ref = await store.put(source, release)
    await releases[0]
    assert ref.digest == digest
    await store.get(digest, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
