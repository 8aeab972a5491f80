"""Whether a broker lets somebody do what its role is for, and nothing else: found by trying.

Every try is such that nothing comes of it where it is let through: an event or a chunk that expects
a sequence which no subject has, a request that lacks what it needs, a purge of what is not there.
The broker then answers with an error, and to what it does not let through, not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from broker.api import stream_info
from broker.appender import EXPECTED
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import NO_STREAM, ApiError, LinkDown
from broker.roles import API, NAMED, User, allows, publishes
from broker.streams import blob_stream, log_stream
from eventlog.events import AGENT, COORDINATOR, OPERATOR, PLANNER, SITE

_NEVER = {EXPECTED: str(2**62)}  # no subject's last sequence
_NOBODY = "no-such-name"
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Tried:
    """`refused`: subjects that the role needs and got no answer on; `allowed`: those that it must
    not have, and got one; `num`: how many were tried."""

    refused: tuple[str, ...]
    allowed: tuple[str, ...]
    num: int

    @property
    def good(self) -> bool:
        return not (self.refused or self.allowed)


async def selftest(connection: Connection, run: str, patience_s: float = 2.0) -> Tried:
    """Try, as whoever the connection is of, on a run that is there. `patience_s`: how long an
    answer that must not come is waited for. Raises LinkDown where the link itself is down."""
    if connection.identity is None:
        raise ValueError("a broker without users has no permissions")
    user = connection.identity.user
    needs = publishes(User(user.role, user.name, user.public, (run,)))
    may = [*needs, *publishes(user)]  # whoever is for all runs may a little more in each of them

    async def answered(one: Outgoing, timeout_s: float) -> bool:
        try:
            await connection.control.request(one, timeout_s=timeout_s)
        except LinkDown:
            if not connection.connected:
                raise
            return False
        return True

    tries = attempts(user, run, blobs=await _has_blobs(connection, run))
    waits = (_ANSWER_S if allows(needs, one.subject) else patience_s for one in tries)
    found = await asyncio.gather(*map(answered, tries, waits))
    got = {one.subject: answer for one, answer in zip(tries, found, strict=True)}
    refused = tuple(one for one, answer in got.items() if not answer and allows(needs, one))
    allowed = tuple(one for one, answer in got.items() if answer and not allows(may, one))
    return Tried(refused, allowed, len(tries))


async def _has_blobs(connection: Connection, run: str) -> bool:
    """Whether the run keeps its blobs on the broker; so far as one may ask."""
    try:
        await stream_info(connection.control, blob_stream(run))
    except ApiError as error:
        return error.err_code != NO_STREAM
    except LinkDown:
        return True
    return True


def attempts(user: User, run: str, *, blobs: bool = True) -> Sequence[Outgoing]:
    """What is tried: own subjects and others', what any role may ask, and what none may. `blobs`:
    those of blobs too."""
    log, store = log_stream(run), blob_stream(run)
    sources = [OPERATOR, COORDINATOR, PLANNER, f"{SITE}.{_NOBODY}", f"{AGENT}.{_NOBODY}"]
    if user.role in NAMED:
        sources.append(f"{user.role}.{user.name}")
    labels = [user.label, f"{SITE}-{_NOBODY}"]
    part = f"atoll.{run}.blob.{'0' * 64}.0"
    nothing = json.dumps({"filter": f"{part}.{SITE}-{_NOBODY}"}).encode()
    calls = [
        *(f"STREAM.INFO.{name}" for name in (log, store)),
        f"STREAM.MSG.GET.{log}",
        *(f"STREAM.{call}.{log}" for call in ("CREATE", "UPDATE", "MSG.DELETE", "SNAPSHOT")),
        *(f"STREAM.{call}.{log}_{_NOBODY}" for call in ("DELETE", "RESTORE")),
        *(f"CONSUMER.CREATE.{log}.{slot}" for slot in (user.slots()[0], f"{_NOBODY}-0")),
    ]
    found = [
        *(Outgoing(f"atoll.{run}.ev.{source}", b"", _NEVER) for source in sources),
        *(Outgoing(f"{API}.{call}") for call in calls),
        *(Outgoing(f"{API}.STREAM.PURGE.{name}", nothing) for name in (log, store)),
        Outgoing("$SYS.REQ.SERVER.PING"),
    ]
    if blobs:
        found += [Outgoing(f"{part}.{label}", b"", _NEVER) for label in labels]
        found.append(Outgoing(f"{API}.DIRECT.GET.{store}.{part}.{user.label}"))
    return found
