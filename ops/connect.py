"""How a command reaches the broker, and the log and blobs of a run on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from broker.connection import Connection, connect
from broker.credentials import Credentials, CredentialsInvalid
from broker.errors import BrokerUnreachable
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import read_address
from broker.session import UNTRUSTED
from eventlog.blobs import BlobStore
from eventlog.codec import decode
from eventlog.config import RunConfig
from eventlog.events import RunCreated
from eventlog.log import EventLog
from eventlog.pace import Pace
from eventlog.s3_blobs import S3Blobs
from ops.home import Home
from ops.output import Reach

BROKER = "broker"  # as a configuration names the store beside the log
DEFAULT_LEASE_S = 30.0
DEFAULT_URL = "nats://127.0.0.1:4222"


def broker_url(given: str | None, home: Home, identity: Credentials | None = None) -> str:
    """The URL given; else that of the credentials; else that of the broker that runs on this home;
    else port 4222 here.

    `given` holds --broker or $ATOLL_BROKER. Nothing is asked: whether it answers, `connect` says.
    """
    if given:
        return given
    if identity:
        return identity.urls
    address = read_address(home.broker)
    if address and _alive(address.get("pid")):
        return str(address["url"])
    return DEFAULT_URL


def identity(reach: Reach) -> Credentials | None:
    """The credentials that were named, else those of ATOLL_HOME, else none. Raises
    CredentialsInvalid."""
    if reach.creds:
        return Credentials.read(reach.creds)
    kept = Home.find().credentials
    return Credentials.read(kept) if kept.exists() else None


async def connected(broker: Reach | str | None, name: str) -> Connection:
    """A connection under a name that the broker's monitor shows. Raises BrokerUnreachable, Refused,
    CredentialsInvalid."""
    reach = broker if isinstance(broker, Reach) else Reach(broker)
    home, known = Home.find(), identity(reach)
    url = broker_url(reach.url, home, known)
    if known is None and url == DEFAULT_URL and not reach.url:
        _ask_for_credentials(home)
    try:
        return await connect(url, name=name, identity=known)
    except BrokerUnreachable as error:
        if reach.url or url != DEFAULT_URL or UNTRUSTED in str(error):
            raise
        raise BrokerUnreachable(f"{error} (none runs on ATOLL_HOME, {home.root})") from error


def _ask_for_credentials(home: Home) -> None:
    """Raises CredentialsInvalid where the broker of this home was configured: it has users."""
    from broker.deployment import Deployment

    if (kept := Deployment(home.broker)).exists:
        raise CredentialsInvalid(
            f"the broker in {kept.root} lets in nobody without credentials: give --creds or "
            f"$ATOLL_CREDS; those of its operator are {kept.root}/credentials/operator-main.creds"
        )


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
    broker: Reach | str | None,
    name: str = "operator",
    pace: Pace | None = None,
    *,
    moves_blobs: bool = False,
    writes: str = "",
) -> AsyncIterator[tuple[EventLog, BlobStore, Connection]]:
    """The log and the blobs of a run, and the connection they share; closed at the end. `pace`
    caps the transfers of blobs; `moves_blobs`: whether there will be any, so that what they need is
    said to be missing at once; `writes`: as which subject events will be written, '' for nobody who
    only reads.

    Raises BrokerUrlInvalid, BrokerUnreachable, BrokerUnfit, Refused, CredentialsInvalid,
    RunUnknown, LogUnavailable, and where blobs are moved ExtraMissing, AccessMissing.
    """
    async with await connected(broker, name) as connection:
        if writes:
            connection.check_writer(writes)
        log = await JetStreamLog.open(connection, run)
        place, lease_s = await _recorded(log)
        connection.retry_within(lease_s / 4)
        if moves_blobs:
            await usable(place)
        blobs = await blobs_of(connection, run, place, pace=pace)
        try:
            yield log, blobs, connection
        finally:
            await log.close()
            await blobs.close()


async def _recorded(log: EventLog) -> tuple[str, float]:
    """Where the run's first event says that its blobs are, and its lease in seconds."""
    for record in await log.read(0, limit=1):
        event = decode(record).event
        if isinstance(event, RunCreated):
            with suppress(ValueError):
                config = RunConfig.recorded(event.config)
                return config.blobs, config.lease_s
    return BROKER, DEFAULT_LEASE_S


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
