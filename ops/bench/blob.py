"""How fast a blob comes into a real broker and out of it, near and 100 ms away.

Near, the limit is copying a file of that size and hashing it, in one thread; far, the peer is the
object store of nats-py with its default chunks. The broker syncs every write (`sync_interval:
always`), ours and the peer's; a file that was fetched is synced too, the copied one is not.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import nats

from broker.connection import NUM_BULK, connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.server import BrokerServer
from broker.settings import ServerSettings
from ops.bench.delay import delayed, rate
from ops.bench.measure import Measure, Progress, Report, at_least, measured

ROUND_TRIP_S = 0.1
UNIT = "MiB/s"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """In MiB: of the blob near, far, and of the peer's object."""

    near: int
    far: int
    peer: int
    runs: int


FULL = Sizes(near=1024, far=256, peer=32, runs=3)
QUICK = Sizes(near=32, far=8, peer=1, runs=1)


@dataclass(slots=True)
class _Rates:
    """MiB/s of each run."""

    copy: list[float] = field(default_factory=list)
    put: list[float] = field(default_factory=list)
    get: list[float] = field(default_factory=list)
    far_put: list[float] = field(default_factory=list)
    far_get: list[float] = field(default_factory=list)
    peer_put: list[float] = field(default_factory=list)
    peer_get: list[float] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> Report:
    """See `ops.commands.bench`."""
    sizes, rates = QUICK if quick else FULL, _Rates()
    with TemporaryDirectory(prefix="atoll-bench-") as name:
        proxy_mib = rate((64 if quick else 1024) * _MIB) / _MIB
        asyncio.run(_measure(Path(name), sizes, rates, progress))
    notes = (
        f"near: {sizes.near:,} MiB; {1000 * ROUND_TRIP_S:g} ms away: {sizes.far:,} MiB, the peer "
        f"{sizes.peer:,} MiB; random bytes, no two blobs alike",
        f"the proxy that delays passes {proxy_mib:,.0f} MiB/s on one connection without delay",
        "client, broker and proxy share the cores of this machine",
    )
    return Report("blob", _measures(rates), sizes.runs, notes)


def _measures(rates: _Rates) -> tuple[Measure, ...]:
    copy = "copying a file of that size and hashing it (sha256)"
    peer = f"nats-py {version('nats-py')}, object store with default chunks"
    lines = (
        ("put", rates.put, copy, rates.copy, 0.4),
        ("get", rates.get, copy, rates.copy, 0.3),
        ("100 ms put", rates.far_put, peer, rates.peer_put, 50),
        ("100 ms get", rates.far_get, peer, rates.peer_get, 5),
    )
    return tuple(
        measured(
            what,
            values,
            UNIT,
            against=against,
            against_values=others,
            target=at_least(bound, of="ratio"),
        )
        for what, values, against, others, bound in lines
    )


async def _measure(folder: Path, sizes: Sizes, rates: _Rates, progress: Progress) -> None:
    parts = 3 * sizes.runs
    with BrokerServer(ServerSettings(folder / "broker"), die_with_parent=True) as server:
        port = int(server.url.rpartition(":")[2])
        with delayed(port, ROUND_TRIP_S / 2) as far:
            for number in range(sizes.runs):
                progress("near", 3 * number, parts)
                source = _random(folder / "source", sizes.near)
                rates.copy.append(sizes.near / _copied(source, folder / "copy"))
                await _ours(server.url, source, sizes.near, (rates.put, rates.get))
                progress("100 ms away", 3 * number + 1, parts)
                source = _random(folder / "source", sizes.far)
                url = f"nats://127.0.0.1:{far}"
                await _ours(url, source, sizes.far, (rates.far_put, rates.far_get))
                progress("nats-py, 100 ms away", 3 * number + 2, parts)
                source = _random(folder / "source", sizes.peer)
                await _peers(url, source, sizes.peer, (rates.peer_put, rates.peer_get))


Both = tuple[list[float], list[float]]  # rates of put, and of get


async def _ours(url: str, source: Path, mib: int, found: Both) -> None:
    async with _store(url) as store:
        target = source.with_name("target")
        began = time.perf_counter()
        blob = await store.put(source)
        found[0].append(mib / (time.perf_counter() - began))
        found[1].append(mib / await _took(store.get(blob.digest, target)))
        target.unlink()
        await store.release([blob.digest])


@asynccontextmanager
async def _store(url: str) -> AsyncIterator[JetStreamBlobs]:
    """A store whose links are up, as they are in a run after its first blob."""
    async with await connect(url, name="bench") as connection:
        await asyncio.gather(*(connection.bulk(n).session(10.0) for n in range(NUM_BULK)))
        yield await JetStreamBlobs.create(connection, "bench")


async def _peers(url: str, source: Path, mib: int, found: Both) -> None:
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream(timeout=60)
        store = await jetstream.create_object_store("peer")
        with source.open("rb") as file:
            found[0].append(mib / await _took(store.put("blob", file)))
        with source.with_name("target").open("wb") as target:
            found[1].append(mib / await _took(store.get("blob", writeinto=target)))
        source.with_name("target").unlink()
        await jetstream.delete_object_store("peer")
    finally:
        await client.close()


async def _took(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _copied(source: Path, target: Path) -> float:
    """Seconds to copy a file and to hash what is copied, in one thread."""
    began, whole = time.perf_counter(), hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(_MIB):
            whole.update(piece)
            writer.write(piece)
    took = time.perf_counter() - began
    target.unlink()
    return took


def _random(path: Path, mib: int) -> Path:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(_MIB))
    return path
