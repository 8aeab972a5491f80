"""Blobs over links that break: resumed, and no chunk stored or fetched twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from broker.api import ask
from broker.connection import Connection
from broker.jetstream_blobs import JetStreamBlobs
from broker.streams import blob_stream
from eventlog.blobs import CHUNK_BYTES
from tests.support.proxy import Proxy


async def test_a_put_that_is_cut_resumes_and_stores_no_chunk_twice(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str, tmp_path: Path
) -> None:
    store = await JetStreamBlobs.create(lossy, run_name)
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(12 * CHUNK_BYTES + 5))
    proxy.watch, proxy.num_losses = b".5.any ", 1
    proxy.counted = f"HPUB atoll.{run_name}.blob.".encode()
    ref = await store.put(source)
    info = await ask(connection.control, f"STREAM.INFO.{blob_stream(run_name)}")
    assert proxy.num_lost == 1
    assert (info["state"]["messages"], info["state"]["last_seq"]) == (14, 14)
    sent = proxy.num_seen
    assert await store.put(source) == ref
    assert proxy.num_seen == sent, "nothing that is stored is sent again"
    await store.get(ref.digest, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


async def test_a_new_process_sends_only_the_chunks_that_are_missing(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(2).randbytes(20 * CHUNK_BYTES))
    begun = asyncio.Event()
    first = await JetStreamBlobs.create(connection, run_name)
    putting = asyncio.create_task(first.put(source, lambda done, total: begun.set()))
    await begun.wait()
    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)
    await asyncio.sleep(0.3)  # what was on its way arrives
    info = await ask(connection.control, f"STREAM.INFO.{blob_stream(run_name)}")
    num_there = info["state"]["messages"]
    assert 0 < num_there < 20
    proxy.counted = f"HPUB atoll.{run_name}.blob.".encode()
    await (await JetStreamBlobs.open(lossy, run_name)).put(source)
    assert proxy.num_seen == 20 - num_there + 1  # the rest, and the list of chunks


async def test_a_get_fetches_only_what_its_part_file_lacks(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(random.Random(3).randbytes(20 * CHUNK_BYTES))
    ref = await (await JetStreamBlobs.create(connection, run_name)).put(source)
    store = await JetStreamBlobs.open(lossy, run_name)
    enough = asyncio.Event()
    getting = asyncio.create_task(
        store.get(ref.digest, target, lambda done, _: enough.set() if done > 4 << 20 else None)
    )
    await enough.wait()
    getting.cancel()
    await asyncio.gather(getting, return_exceptions=True)
    await asyncio.sleep(0.2)  # threads that were writing end
    assert not target.exists()
    data, part = source.read_bytes(), (tmp_path / "target.part").read_bytes()
    starts = range(0, len(data), CHUNK_BYTES)
    num_held = sum(part[n : n + CHUNK_BYTES] == data[n : n + CHUNK_BYTES] for n in starts)
    assert 2 <= num_held < 20
    proxy.counted = b"DIRECT.GET"
    await store.get(ref.digest, target)
    assert target.read_bytes() == data
    assert proxy.num_seen == 1 + 20 - num_held  # the list of chunks, and the rest


async def test_a_get_whose_link_is_cut_goes_on(
    proxy: Proxy, lossy: Connection, connection: Connection, run_name: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(random.Random(4).randbytes(8 * CHUNK_BYTES))
    ref = await (await JetStreamBlobs.create(connection, run_name)).put(source)
    store = await JetStreamBlobs.open(lossy, run_name)
    proxy.watch, proxy.num_losses = f"{ref.digest}.5.any ".encode(), 1
    await store.get(ref.digest, target)
    assert proxy.num_lost == 1
    assert target.read_bytes() == source.read_bytes()
