"""`atoll bench hostile`: what a site with valid credentials can do to the others, by trying.

A broker in production shape (TLS, keys, permissions) and three honest sites, each of which appends
ten events a second, more than a site of a run does, and moves a blob of 4 MiB a second. A reader
folds the whole log in a process of its own, as a coordinator does. The same stretch is measured
without and with a fourth site in a process of its own that floods, forges, replays, uploads torn
and foreign blobs and opens connections that it leaves half-open (`ops.bench.hostile_site`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.connection import Connection, connect
from broker.credentials import Credentials
from broker.deployment import Deployment
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.production import Shape
from eventlog.errors import LogUnavailable
from eventlog.events import Heartbeat
from eventlog.writer import Stamp, Writer
from ops.bench.measure import Measure, Progress, Report, at_least, at_most, measured
from ops.bench.resources import peak_gb

RUN = "besieged"
SITES = ("alpha", "beta", "gamma")
EVENTS_PER_S = 10.0
BLOB_BYTES = 4 << 20
STRETCH_S, QUICK_S = 150.0, 4.0
CHECKOUT = Path(__file__).parents[2]
_PATIENCE_S = 120.0


@dataclass(slots=True)
class _Done:
    """What the honest sites have got done; `behind_s`: for how long the reader had to catch up."""

    events: int = 0
    blobs: int = 0
    slowest_s: float = 0.0
    behind_s: float = 0.0
    hostile_events: int = 0
    reader_gb: float = 0.0


def run(quick: bool, progress: Progress) -> Report:
    """Medians of two pairs of stretches; one short pair with `quick`."""
    seconds, num = (QUICK_S, 1) if quick else (STRETCH_S, 2)
    alone, beside, peaks = [], [], []
    for number in range(num):
        with TemporaryDirectory(prefix="atoll-bench-") as folder, _besieged(Path(folder)) as broker:
            progress("stretches", 2 * number, 2 * num)
            place = Path(folder)
            alone.append(asyncio.run(_stretch(broker, seconds, place, beside=False)))
            progress("stretches", 2 * number + 1, 2 * num)
            beside.append(asyncio.run(_stretch(broker, seconds, place, beside=True)))
            peaks.append(peak_gb(broker.pid) * 1e9 / 2**20)
    progress("stretches", 2 * num, 2 * num)
    rates = [one.hostile_events / seconds for one in beside]
    return Report("hostile", tuple(_measures(alone, beside, peaks, rates, seconds)), num)


def _measures(
    alone: list[_Done], beside: list[_Done], peaks: list[float], rates: list[float], seconds: float
) -> Iterator[Measure]:
    against, target = "the same without it", at_least(0.9, "ratio")
    for what, name in (("events of honest sites", "events"), ("their blobs", "blobs")):
        yield measured(
            f"{what}, beside a hostile site",
            [getattr(one, name) / seconds for one in beside],
            "1/s",
            against=against,
            against_values=[getattr(one, name) / seconds for one in alone],
            target=target,
        )
    yield measured(
        "slowest acknowledgement",
        [one.slowest_s for one in beside],
        "s",
        against=against,
        against_values=[one.slowest_s for one in alone],
    )
    yield measured("peak memory of the broker", peaks, "MiB", target=at_most(1024))
    peak = [one.reader_gb * 1e9 / 2**20 for one in beside]
    yield measured("peak memory of who folds the log", peak, "MiB", target=at_most(1024))
    behind = [one.behind_s for one in beside]
    yield measured("the fold is caught up after", behind, "s", target=at_most(10))
    yield measured("events of the hostile site that were stored", rates, "1/s")


@dataclass(frozen=True, slots=True)
class Besieged:
    """A broker that `atoll broker serve` runs, with everybody's credentials."""

    deployment: Deployment
    pid: int  # of the server

    def credentials(self, role: str, name: str = "main") -> Credentials:
        return Credentials.read(self.file(role, name))

    def file(self, role: str, name: str = "main") -> Path:
        return self.deployment.root / "credentials" / f"{role}-{name}.creds"

    async def connect(self, role: str, name: str = "main") -> Connection:
        identity = self.credentials(role, name)
        return await connect(identity.urls, name=identity.user.label, identity=identity)


@contextmanager
def _besieged(root: Path) -> Iterator[Besieged]:
    deployment = Deployment(root / "broker")
    ports = _free_ports(2)
    shape = Shape(
        {"atoll": "localhost"},
        listen="127.0.0.1",
        port=ports[0],
        monitor_port=ports[1],
        websocket_port=0,
        max_connections=64,
    )
    deployment.configure(shape)
    for name in (*SITES, "hostile"):
        deployment.issue("site", name)
    command = [sys.executable, "-m", "ops", "broker", "serve", "--json", "--dir"]
    with subprocess.Popen(
        [*command, str(deployment.root)],
        stdout=subprocess.PIPE,
        stderr=None,
        cwd=CHECKOUT,
    ) as process:
        assert process.stdout is not None
        try:
            made = Besieged(deployment, int(json.loads(process.stdout.readline())["pid"]))
            asyncio.run(_found(made))
            yield made
        finally:
            process.terminate()


async def _found(broker: Besieged) -> None:
    async with await broker.connect("operator") as connection:
        await JetStreamLog.create(connection, RUN)
        await JetStreamBlobs.create(connection, RUN)


async def _stretch(broker: Besieged, seconds: float, folder: Path, *, beside: bool) -> _Done:
    """The honest sites' work in a stretch, and the reader's, who starts from an empty table."""
    done, said = _Done(), folder / f"position-{beside}"
    reader = _start("hostile_reader", broker.file("coordinator"), RUN, said)
    try:
        async with AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(await broker.connect("site", name))
                for name in SITES
            ]
            log = await JetStreamLog.open(connections[0], RUN)
            start = await log.last_sequence()
            await _reached(said, start)
            end = time.monotonic() + seconds
            hostile = None
            if beside:
                file = broker.file("site", "hostile")
                hostile = _start("hostile_site", file, RUN, f"{seconds:g}")
            work = (
                _honest(one, name, end, done) for one, name in zip(connections, SITES, strict=True)
            )
            await asyncio.gather(*work)
            if hostile is not None:
                hostile.kill()  # it may hang on what the broker did to it
                hostile.wait()
            last, began = await log.last_sequence(), time.monotonic()
            await _reached(said, last)
            done.behind_s = time.monotonic() - began
            done.hostile_events = last - start - done.events
            done.reader_gb = peak_gb(reader.pid)
            await log.close()
    finally:
        reader.kill()
        reader.wait()
    return done


def _start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A process of its own: it takes no turns of the honest sites' loop."""
    command = [sys.executable, "-m", f"ops.bench.{module}", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=CHECKOUT
    )


async def _reached(said: Path, sequence: int) -> None:
    """Until the reader has folded so far. Raises TimeoutError."""
    async with asyncio.timeout(_PATIENCE_S):
        while not said.exists() or int(said.read_text()) < sequence:
            await asyncio.sleep(0.05)


async def _honest(connection: Connection, name: str, end: float, done: _Done) -> None:
    log = await JetStreamLog.open(connection, RUN)
    blobs = await JetStreamBlobs.open(connection, RUN)
    await asyncio.gather(_append(log, name, end, done), _move(blobs, name, end, done))
    await log.close()


async def _append(log: JetStreamLog, name: str, end: float, done: _Done) -> None:
    """One event after another, at the stated rate and not faster."""
    pen = Writer(log, f"site.{name}")
    last = await log.last(pen.subject)
    pen.last = last.sequence if last else 0
    beat = Heartbeat(phase="training", step=1, tokens=1, tokens_per_s=1.0)
    due = time.monotonic()
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        began = time.monotonic()
        await _stored(pen, beat)
        if time.monotonic() <= end:
            done.events += 1
            done.slowest_s = max(done.slowest_s, time.monotonic() - began)
        due = max(due + 1 / EVENTS_PER_S, time.monotonic() - 1.0)


async def _stored(pen: Writer, beat: Heartbeat) -> None:
    """Append, and again where nothing is known of it, as a hub does."""
    attempt = pen.append([beat], Stamp())
    while True:
        try:
            await attempt
            return
        except LogUnavailable:
            attempt = pen.retry()


async def _move(blobs: JetStreamBlobs, name: str, end: float, done: _Done) -> None:
    """A blob up and down again, one a second and not faster."""
    due = time.monotonic()
    with TemporaryDirectory(prefix="atoll-bench-") as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            source.write_bytes(os.urandom(BLOB_BYTES))
            ref = await blobs.put(source)
            await blobs.get(ref.digest, target)
            done.blobs += time.monotonic() <= end
            due = max(due + 1.0, time.monotonic() - 2.0)


def _free_ports(num: int) -> list[int]:
    import socket

    probes = [socket.socket() for _ in range(num)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
