"""Names of a user's consumers: it has a few on each stream (`broker.roles`), and shares them among
its processes.

One that was killed leaves its consumer behind until the broker removes it, a minute later. Where
all are taken, the one that nobody reads any more is taken over.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.api import ANSWER_S, API, parse, parse_time
from broker.client import Outgoing
from broker.errors import ApiError, LinkDown
from broker.session import Session

SETTLED_S = 5.0  # a consumer that is younger may only be about to be read
IN_USE = "these credentials have all their consumers in use: end other processes"


def names(session: Session) -> Iterator[str]:
    """Names to try for a consumer: of a user's own few, each once, from a random one on."""
    if session.user is None:
        return iter([f"atoll-{uuid.uuid4().hex}"])
    slots = session.user.slots()
    return iter(random.sample(slots, len(slots)))


async def reclaim(session: Session, stream: str) -> str:
    """Remove the consumer that nobody reads any more; its name. Raises LinkDown where each of them
    is read."""
    slots = session.user.slots() if session.user else []
    found = await asyncio.gather(*(_info(session, stream, slot) for slot in slots))
    name = abandoned([info for info in found if info is not None])
    if name is None:
        raise LinkDown(IN_USE)
    await _call(session, "DELETE", stream, name)
    return name


def abandoned(infos: Sequence[Mapping[str, Any]]) -> str | None:
    """Which of these consumers has been silent for longest without anybody who waits for it: the
    broker forgets the requests of a connection as it ends. A reader that lives is without requests
    only while what it asked for is on its way to it; it reads on with another consumer."""
    silent = [
        (spoke_ns, str(one["name"]))
        for one in infos
        if not one.get("num_waiting")
        and (spoke_ns := _spoke_ns(one)) < parse_time(one["ts"]) - SETTLED_S * 1e9
    ]
    return min(silent)[1] if silent else None


def _spoke_ns(info: Mapping[str, Any]) -> int:
    last = (info.get("delivered") or {}).get("last_active") or info["created"]
    return max(parse_time(last), parse_time(info["created"]))


async def _info(session: Session, stream: str, name: str) -> dict[str, Any] | None:
    try:
        return await _call(session, "INFO", stream, name)
    except ApiError:
        return None  # removed meanwhile


async def _call(session: Session, call: str, stream: str, name: str) -> dict[str, Any]:
    request = Outgoing(f"{API}.CONSUMER.{call}.{stream}.{name}")
    return parse((await session.request(request, timeout_s=ANSWER_S)).data)
