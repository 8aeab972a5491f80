"""How a command reaches the broker, and the log and blobs of a run on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.connection import Connection, connect
from broker.errors import BrokerUnreachable
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import read_address
from eventlog.blobs import BlobStore
from eventlog.codec import decode
from eventlog.events import RunCreated
from eventlog.log import EventLog
from eventlog.pace import Pace
from eventlog.s3_blobs import S3Blobs
from ops.home import Home

BROKER = "broker"  # as a configuration names the store beside the log
DEFAULT_URL = "nats://127.0.0.1:4222"


def broker_url(given: str | None, home: Home) -> str:
    """The URL given; else that of the broker that runs on this home; else port 4222 here.

    `given` holds --broker or $ATOLL_BROKER. Nothing is asked: whether it answers, `connect` says.
    """
    if given:
        return given
    address = read_address(home.broker)
    if address and _alive(address.get("pid")):
        return str(address["url"])
    return DEFAULT_URL


async def connected(broker: str | None, name: str) -> Connection:
    """A connection under a name that the broker's monitor shows. Raises BrokerUnreachable."""
    home = Home.find()
    url = broker_url(broker, home)
    try:
        return await connect(url, name=name)
    except BrokerUnreachable as error:
        if broker or url != DEFAULT_URL:
            raise
        raise BrokerUnreachable(f"{error} (none runs on ATOLL_HOME, {home.root})") from error


async def blobs_of(
    connection: Connection, run: str, place: str, *, create: bool = False, pace: Pace | None = None
) -> BlobStore:
    """The blobs of a run, where its configuration says that they are kept (`RunConfig.blobs`).
    Raises RunUnknown, BrokerUnfit, LogUnavailable."""
    if place != BROKER:
        return S3Blobs(f"{place.rstrip('/')}/{run}", pace=pace)
    make = JetStreamBlobs.create if create else JetStreamBlobs.open
    return await make(connection, run, pace=pace)


async def usable(place: str) -> None:
    """Nothing, where blobs there can be asked for. Raises ExtraMissing, AccessMissing."""
    if place != BROKER:
        await S3Blobs(place).ready()


@asynccontextmanager
async def opened(
    run: str,
    broker: str | None,
    name: str = "operator",
    pace: Pace | None = None,
    *,
    moves_blobs: bool = False,
) -> AsyncIterator[tuple[EventLog, BlobStore, Connection]]:
    """The log and the blobs of a run, and the connection they share; closed at the end. `pace`
    caps the transfers of blobs; `moves_blobs`: whether there will be any, so that what they need is
    said to be missing at once.

    Raises BrokerUrlInvalid, BrokerUnreachable, BrokerUnfit, RunUnknown, LogUnavailable, and where
    blobs are moved ExtraMissing, AccessMissing.
    """
    async with await connected(broker, name) as connection:
        log = await JetStreamLog.open(connection, run)
        place = await _place(log)
        if moves_blobs:
            await usable(place)
        blobs = await blobs_of(connection, run, place, pace=pace)
        try:
            yield log, blobs, connection
        finally:
            await log.close()
            await blobs.close()


async def _place(log: EventLog) -> str:
    """Where the run's first event says that its blobs are."""
    for record in await log.read(0, limit=1):
        event = decode(record).event
        if isinstance(event, RunCreated):
            return str(event.config.get("blobs", BROKER))
    return BROKER


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's, and alive
    return True
