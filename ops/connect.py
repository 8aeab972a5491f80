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
from eventlog.log import EventLog
from ops.home import Home

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


@asynccontextmanager
async def opened(
    run: str, broker: str | None, name: str = "operator"
) -> AsyncIterator[tuple[EventLog, BlobStore, Connection]]:
    """The log and the blobs of a run, and the connection they share; closed at the end.

    Raises BrokerUnreachable, BrokerUnfit, RunUnknown, LogUnavailable.
    """
    async with await connected(broker, name) as connection:
        log = await JetStreamLog.open(connection, run)
        blobs = await JetStreamBlobs.open(connection, run)
        try:
            yield log, blobs, connection
        finally:
            await log.close()
            await blobs.close()


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
