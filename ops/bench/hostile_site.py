"""A site with valid credentials that wishes the run ill: `python -m ops.bench.hostile_site`.

It goes past our own client's care, straight to the broker: floods its own subject with garbage,
empty messages and replays of its own events; writes under others' names; asks for what it may not
have, with answers sent elsewhere; uploads chunks that belong to no blob; begins batches that it
never ends; opens connections that say nothing. All of it as fast as it can, until its time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from broker.client import DirectClient
from broker.credentials import Credentials

NUM_SOCKETS = 200
Attack = Callable[[DirectClient, str, str], Awaitable[None]]
_numbers = itertools.count()


async def flood(client: DirectClient, run: str, own: str) -> None:
    """Garbage of all sizes, empty messages among it, on its own subject."""
    for size in (0, 1, 100, 1_000, 50_000):
        await client.publish(f"atoll.{run}.ev.{own}", random.randbytes(size))


async def replay(client: DirectClient, run: str, own: str) -> None:
    """The same well-formed message again and again, under one message id."""
    await client.publish(f"atoll.{run}.ev.{own}", b"\x81\xa2id\xa1x", "", {"Nats-Msg-Id": "one"})


async def forge(client: DirectClient, run: str, own: str) -> None:
    """Others' subjects, and answers that are to land there."""
    for subject in ("coordinator", "operator", "site.alpha"):
        await client.publish(f"atoll.{run}.ev.{subject}", b"forged")
        await client.publish(f"atoll.{run}.ev.{own}", b"mine", f"atoll.{run}.ev.{subject}")
    stream = f"ATOLL_{run.upper()}"
    await client.publish(f"$JS.API.STREAM.INFO.{stream}", b"", f"atoll.{run}.ev.coordinator")
    await client.publish(f"$JS.API.STREAM.DELETE.{stream}", b"")


async def litter(client: DirectClient, run: str, own: str) -> None:
    """Chunks of blobs that nobody names, torn and foreign ones."""
    digest, label = f"{next(_numbers):064x}", own.replace(".", "-")
    for part in ("0", "7", "meta"):
        await client.publish(f"atoll.{run}.blob.{digest}.{part}.{label}", os.urandom(64 << 10))


async def pile(client: DirectClient, run: str, own: str) -> None:
    """Atomic batches that are begun and never ended: the broker bounds those of all together."""
    headers = {"Nats-Batch-Id": f"{next(_numbers)}", "Nats-Batch-Sequence": "1"}
    await client.publish(f"atoll.{run}.ev.{own}", b"begun", "", headers)


ATTACKS: tuple[Attack, ...] = (flood, replay, forge, litter, pile)


async def hang(identity: Credentials, end: float) -> None:
    """Connections that are opened and say nothing, again and again."""
    place = urlsplit(identity.urls)
    while time.monotonic() < end:
        opened = []
        for _ in range(NUM_SOCKETS):
            with contextlib.suppress(OSError):
                opened.append(await asyncio.open_connection(place.hostname, place.port))
        await asyncio.sleep(min(2.0, max(0.0, end - time.monotonic())))
        for _, writer in opened:
            writer.close()


async def attack(identity: Credentials, run: str, end: float) -> None:
    """All attacks in turn; whoever is cut off comes back."""

    async def heard(_: Exception) -> None:
        """Refusals are no news to it."""

    while time.monotonic() < end:
        client = DirectClient()
        with contextlib.suppress(Exception):  # whatever the broker does to it, it goes on
            await client.connect(
                identity.urls,
                signature_cb=client.identify(identity.key),
                tls=identity.tls(),
                error_cb=heard,
                allow_reconnect=False,
            )
            own = f"site.{identity.name}"
            while time.monotonic() < end and client.is_connected:
                for one in ATTACKS:
                    await one(client, run, own)
                await client.flush(10)
        with contextlib.suppress(Exception):
            await client.close()
        await asyncio.sleep(0.1)


async def main(file: Path, run: str, seconds: float) -> None:
    """Attack for so long."""
    identity, end = Credentials.read(file), time.monotonic() + seconds
    await asyncio.gather(attack(identity, run, end), hang(identity, end))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
