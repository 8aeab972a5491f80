"""JetStream's own requests: JSON over the control link, errors by their code, patience."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from broker.client import Outgoing
from broker.errors import NO_MESSAGE, NO_STREAM, WRONG_LAST_SEQUENCE, ApiError, LinkDown
from broker.link import Link
from eventlog.errors import AtollError

API = "$JS.API"
ANSWER_S = 5.0
PERMANENT = frozenset({NO_STREAM, WRONG_LAST_SEQUENCE})
_BACKOFF_S = (0.02, 1.0)

T = TypeVar("T")


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Raises ApiError where it carries an error."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise LinkDown("the answer is not JetStream's") from error
    if not isinstance(answer, dict):
        raise LinkDown("the answer is not JetStream's")
    if problem := answer.get("error"):
        raise ApiError(
            int(problem.get("code", 0)),
            int(problem.get("err_code", 0)),
            str(problem.get("description", "")),
        )
    return answer


async def ask(link: Link, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One request of JetStream's API. Raises ApiError, LinkDown."""
    data = json.dumps(body).encode() if body else b""
    message = await link.request(Outgoing(f"{API}.{subject}", data), timeout_s=ANSWER_S)
    return parse(message.data)


async def stream_info(
    link: Link, stream: str, query: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """STREAM.INFO by the stream's leader: never stale. Raises ApiError, LinkDown."""
    info = await ask(link, f"STREAM.INFO.{stream}", query)
    if not is_leaders(info):
        raise LinkDown(f"another server than its leader answered for stream {stream}")
    return info


def is_leaders(info: Mapping[str, Any]) -> bool:
    """Whether a stream's leader gave this answer, which names everybody else as a replica.

    A server of a cluster that comes back with an empty disk answers for seconds for streams that
    it was chosen to lead when they were made, as if they were empty (nats-server 2.15.1).
    """
    cluster = info.get("cluster") or {}
    others = [one.get("name") for one in cluster.get("replicas") or ()]
    return not others or cluster.get("leader", "") not in ("", *others)


async def persist(
    work: Callable[[], Awaitable[T]], seconds: float, failure: type[AtollError], what: str
) -> T:
    """`work`, tried again with back-off after LinkDown and passing API errors.

    Raises ApiError for what waiting does not mend (PERMANENT), `failure` when time is up.
    """
    clock = asyncio.get_running_loop().time
    end, delay = clock() + seconds, _BACKOFF_S[0]
    while True:
        try:
            return await work()
        except (LinkDown, ApiError) as error:
            if isinstance(error, ApiError) and error.err_code in PERMANENT:
                raise
            if clock() + delay > end:
                raise failure(f"{what}: {error}; try again") from error
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, _BACKOFF_S[1])


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as a stream holds it."""

    sequence: int
    subject: str
    time_ns: int
    data: bytes


async def get_message(link: Link, stream: str, query: Mapping[str, Any]) -> Stored | None:
    """STREAM.MSG.GET, answered by the leader: never stale. None where there is no such message.
    Raises ApiError, LinkDown."""
    try:
        answer = await ask(link, f"STREAM.MSG.GET.{stream}", query)
    except ApiError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    return Stored(
        int(message["seq"]),
        str(message["subject"]),
        parse_time(message["time"]),
        base64.b64decode(message.get("data", "")),
    )


def parse_time(text: str) -> int:
    """Nanoseconds UTC of an RFC 3339 time, exactly. Raises ValueError."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole)
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is not in UTC")
    seconds = int(moment.replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)
