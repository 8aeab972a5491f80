"""What transfers may take: bytes a second, memory, and room in the broker's queue."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import broker.server
from broker.api import ask
from broker.connection import Connection, connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.server import BrokerServer
from broker.settings import ServerSettings, render
from broker.streams import blob_stream
from eventlog.blobs import CHUNK_BYTES
from eventlog.pace import Pace, Window

ROOT = Path(__file__).parents[2]
WINDOW_BYTES = JetStreamBlobs.WINDOW * CHUNK_BYTES


def blob(path: Path, num_bytes: int, seed: int = 1) -> Path:
    path.write_bytes(random.Random(seed).randbytes(num_bytes))
    return path


async def test_a_cap_holds_both_ways_and_twice_the_cap_takes_half_the_time(
    connection: Connection, run_name: str, tmp_path: Path
) -> None:
    took: list[float] = []
    for number, rate in enumerate((4 * CHUNK_BYTES, 8 * CHUNK_BYTES)):
        source = blob(tmp_path / "source", 4 * CHUNK_BYTES, number)
        store = await JetStreamBlobs.create(connection, run_name, pace=Pace(rate))
        began = time.monotonic()
        ref = await store.put(source)
        await store.get(ref.digest, tmp_path / "target")
        took.append(time.monotonic() - began)
        assert took[-1] >= 2 * ref.num_bytes / rate
    assert 1.2 < took[0] / took[1] < 2.5


def test_memory_is_bounded_by_the_window_not_by_the_blob(
    broker: BrokerServer, run_name: str, tmp_path: Path
) -> None:
    """Three of the window: what is on the way, and a copy of it at the client and at the socket."""
    source = blob(tmp_path / "source", 5 * WINDOW_BYTES)

    async def create() -> None:
        async with await connect(broker.url, name="test") as connection:
            await JetStreamBlobs.create(connection, run_name)

    asyncio.run(create())
    assert grown(broker.url, run_name, "put", source) < 3 * WINDOW_BYTES

    async def digest() -> str:
        async with await connect(broker.url, name="test") as connection:
            return (await (await JetStreamBlobs.open(connection, run_name)).digests())[0]

    target = tmp_path / "target"
    found = asyncio.run(digest())
    assert grown(broker.url, run_name, "get", target, found) < 3 * WINDOW_BYTES
    assert target.read_bytes() == source.read_bytes()


def grown(url: str, run: str, *what: object) -> int:
    """Bytes by which a process's memory grew while it moved a blob, at most."""
    command = [sys.executable, "-m", "tests.support.mover", url, run, *map(str, what)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return int(said.splitlines()[-1].removeprefix("grew "))


async def test_a_broker_whose_queue_is_full_gets_everything_once_from_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It answers 429 then: whoever hears that sends less at once, and later."""

    def small(*arguments: object) -> str:
        limit = "sync_interval: always\n  max_buffered_msgs: 2"
        return render(*arguments).replace("sync_interval: always", limit)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.server, "render", small)
    shrunk: list[int] = []
    shrink = Window.shrink
    monkeypatch.setattr(Window, "shrink", lambda self: (shrunk.append(self.size), shrink(self))[1])
    sources = [blob(tmp_path / str(number), 12 * CHUNK_BYTES, number) for number in range(4)]
    with BrokerServer(ServerSettings(tmp_path / "broker"), die_with_parent=True) as server:
        async with await connect(server.url, name="test") as connection:
            stores = [await JetStreamBlobs.create(connection, "run-a") for _ in sources]
            pairs = zip(stores, sources, strict=True)
            refs = await asyncio.gather(*(store.put(source) for store, source in pairs))
            info = await ask(connection.control, f"STREAM.INFO.{blob_stream('run-a')}")
            assert (info["state"]["messages"], info["state"]["last_seq"]) == (52, 52)
            assert shrunk, "the broker refused some"
            for ref, source in zip(refs, sources, strict=True):
                await stores[0].get(ref.digest, tmp_path / "target")
                assert (tmp_path / "target").read_bytes() == source.read_bytes()
