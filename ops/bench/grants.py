"""`atoll bench grants`: durable grant decisions per second, on a real broker.

A nats-server of our own as `atoll broker serve` starts it, with `sync_interval: always`: an append
is acknowledged once it is on the disk. The real coordinator opens a round of as many sites as there
are grants to decide, one block each, and then decides: each grant is an append of its own, with the
expected last sequence of its subject; it is acknowledged, comes back through the follower, is
folded, and only then the next one is decided (R5). In `batched` the same grants stand in atomic
batches of up to 500, as in production.

`bare` is the rate of the same payloads appended in sequence, with the same expectation, by the
plain client and nothing else, on the same broker in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import nats
from nats.aio.client import Client

from broker.connection import Connection, check_server, connect
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import COORDINATOR, OPERATOR, LeaseGranted, RunPaused, RunResumed, SiteAdmitted
from eventlog.log import MAX_BATCH, EventLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from ops.bench.desk import digest_of, founding, holding, joining
from ops.bench.measure import Progress, Report, at_least, measured
from outer.coordinator import Coordinator

NUM_GRANTS, PATIENCE_S = 1000, 120.0
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


def run(quick: bool, progress: Progress) -> Report:
    """Medians of five runs; of one short one with `quick`."""
    num_runs, num_grants = (1, 100) if quick else (5, NUM_GRANTS)
    with TemporaryDirectory(prefix="atoll-bench-", dir=Path.cwd()) as folder:
        with BrokerServer(ServerSettings(Path(folder) / "broker")) as server:
            rates = asyncio.run(_measure(server, num_runs, num_grants, progress))
        syncs = _syncs_per_second(Path(folder) / "syncs", 200 if quick else 2000)
    names = ("single", "bare", "batched")
    single, bare, batched = ([rate[name] for rate in rates] for name in names)
    per_s = "1/s"
    return Report(
        "grants",
        (
            measured("grants", single, per_s, target=at_least(1000)),
            measured(
                "bare",
                single,
                per_s,
                against="bare appends in sequence",
                against_values=bare,
                target=at_least(0.4, "ratio"),
            ),
            measured("batched", batched, per_s, target=at_least(5000)),
        ),
        num_runs,
        (
            f"{num_grants} grants a run; sync_interval: always, as the broker itself reports",
            f"this disk takes {syncs:.0f} writes with fdatasync per second, one after the other",
        ),
    )


async def _measure(
    server: BrokerServer, num_runs: int, num_grants: int, progress: Progress
) -> list[dict[str, float]]:
    rates = []
    client = await nats.connect(server.url)
    try:
        async with await connect(server.url, name="bench") as connection:
            unsure = await check_server(connection, server.monitor_url)
            assert not unsure, unsure
            for number in range(num_runs):
                progress("runs", number, num_runs)
                single, payloads = await _granting(connection, f"single-{number}", num_grants, 1)
                bare = await _bare(connection, client, f"bare-{number}", payloads)
                batched, _ = await _granting(connection, f"batched-{number}", num_grants, MAX_BATCH)
                rates.append({"single": single, "bare": bare, "batched": batched})
    finally:
        await client.close()
    progress("runs", num_runs, num_runs)
    return rates


async def _granting(
    connection: Connection, run: str, num_grants: int, max_grants: int
) -> tuple[float, list[bytes]]:
    """Grants decided per second from the opened round to the last acknowledgement, and their
    payloads."""
    log = await JetStreamLog.create(connection, run)
    watched = _Watched(log, run)
    operator = Writer(log, OPERATOR)
    await operator.append(
        [founding(1, blocks_per_round=1), RunPaused(reason="sites gather")], Stamp()
    )
    projection = Projection(":memory:", [LeaseTable()], run)
    shop = _shop()
    coordinator = Coordinator(watched, projection, shop, "bench", max_grants=max_grants)
    task = asyncio.create_task(coordinator.run())
    try:
        await _gather_sites(log, num_grants)
        watched.num_wanted = num_grants
        await operator.append([RunResumed(reason="all are there")], Stamp())
        waiting = asyncio.create_task(watched.done.wait())
        await asyncio.wait({task, waiting}, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if task.done():
            task.result()
        if not watched.done.is_set():
            raise TimeoutError(
                f"{len(watched.payloads)} of {num_grants} grants within the patience"
            )
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        projection.close()
        await log.close()
    return num_grants / (watched.ended - watched.began), watched.payloads


async def _gather_sites(log: EventLog, num_sites: int) -> None:
    """Sites join, are admitted, and hold the version there is."""
    pens = {name: Writer(log, f"site.{name}") for name in (f"s{i:04d}" for i in range(num_sites))}
    await asyncio.gather(*(pen.append([joining()], Stamp()) for pen in pens.values()))
    left = set(pens)
    async with asyncio.timeout(PATIENCE_S):
        async for records in log.follow(0, subjects=[COORDINATOR]):
            entries = [decode(record) for record in records]
            admitted = [one for one in entries if isinstance(one.event, SiteAdmitted)]
            sites = {one.event.site: one.token for one in admitted}  # type: ignore[union-attr]
            await asyncio.gather(
                *(
                    pens[site].append([holding(0)], Stamp(incarnation=token))
                    for site, token in sites.items()
                )
            )
            left -= sites.keys()
            if not left:
                return


async def _bare(
    connection: Connection, client: Client, run: str, payloads: Sequence[bytes]
) -> float:
    """Appends per second, one after the other, by the plain client."""
    log = await JetStreamLog.create(connection, run)
    subject, last = f"atoll.{run}.ev.{COORDINATOR}", 0
    began = time.perf_counter()
    for payload in payloads:
        answer = await client.request(subject, payload, 5.0, headers={EXPECTED: str(last)})
        last = int(json.loads(answer.data)["seq"])
    rate = len(payloads) / (time.perf_counter() - began)
    await log.close()
    return rate


@dataclass(slots=True)
class _Watched:
    """A log whose appends of grants are timed: from the end of the append before the first one, to
    the acknowledgement of the last."""

    log: EventLog
    run: str
    num_wanted: int = 0
    payloads: list[bytes] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """See `EventLog.append`."""
        sequence = await self.log.append(subject, payloads, expected_last)
        now = time.perf_counter()
        if LeaseGranted.type.encode() not in payloads[0]:
            if not self.payloads:
                self.began = now
            return sequence
        self.payloads += payloads
        if len(self.payloads) == self.num_wanted:
            self.ended = now
            self.done.set()
        return sequence

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        """See `EventLog.read`."""
        return await self.log.read(after, subjects=subjects, limit=limit)

    def follow(
        self, after: int, *, subjects: Sequence[str] | None = None
    ) -> AsyncIterator[list[Record]]:
        """See `EventLog.follow`."""
        return self.log.follow(after, subjects=subjects)

    async def at(self, sequence: int) -> Record | None:
        """See `EventLog.at`."""
        return await self.log.at(sequence)

    async def last(self, subject: str) -> Record | None:
        """See `EventLog.last`."""
        return await self.log.last(subject)

    async def last_sequence(self) -> int:
        """See `EventLog.last_sequence`."""
        return await self.log.last_sequence()

    async def close(self) -> None:
        """The log stays its maker's to close."""


class _Shelf:
    """What the coordinator sees when it looks through the blobs: those of version 0, no more."""

    async def digests(self) -> list[str]:
        return [founding(1, 1).parameters_blob]

    async def unfinished(self) -> dict[str, int]:
        return {}


def _shop() -> Any:
    """A workshop that holds version 0 and has nothing to do."""
    digests = {name: digest_of(f"{name} 0") for name in ("parameters", "momentum", "residual")}
    state = SimpleNamespace(version=0)
    return SimpleNamespace(
        state=state,
        digests=SimpleNamespace(**digests),
        blobs=_Shelf(),
        sweep=lambda: None,  # it has no folder
    )


def _syncs_per_second(path: Path, num: int) -> float:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(num):
            os.write(handle, bytes(512))
            os.fdatasync(handle)
        return num / (time.perf_counter() - began)
    finally:
        os.close(handle)
