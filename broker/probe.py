"""What a link to the broker can do, measured: round trip, clock, and bytes a second up."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass

from broker.api import API, ask, parse_time
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import ApiError
from broker.link import CONNECT_S
from broker.streams import log_stream

ROUND_TRIPS, TRIES = 5, 8
MIN_BYTES, MAX_BYTES = 1 << 18, 1 << 20  # of one request; a broker takes a chunk of a blob at least
LONG_S = 0.5  # a request that takes so long measures well; no further one is sent
LIMIT_S = 60.0
NO_RUN = "doctor"  # whose stream is asked about where no run is named; there need not be one


@dataclass(frozen=True, slots=True)
class Probe:
    """`round_trip_s`: the median of some; `clock_offset_s`: the broker's clock less ours, known to
    half a round trip; None where no run was named or the broker does not say its time."""

    round_trip_s: float
    up_bytes_per_s: float
    clock_offset_s: float | None


async def probe(connection: Connection, run: str | None) -> Probe:
    """Measure; nothing is stored. Credentials for some runs only need one of them as `run`: others
    are not answered. Raises LinkDown."""
    about = f"STREAM.INFO.{log_stream(run or NO_RUN)}"  # what every role may ask
    trips = [await _round_trip(connection, about) for _ in range(ROUND_TRIPS)]
    up = await _up(connection, f"{API}.{about}", min(trips))
    return Probe(statistics.median(trips), up, await _offset(connection, run) if run else None)


async def _round_trip(connection: Connection, about: str) -> float:
    began = time.perf_counter()
    with suppress(ApiError):  # that there is no such stream is an answer, too
        await ask(connection.control, about)
    return time.perf_counter() - began


async def _up(connection: Connection, subject: str, trip_s: float) -> float:
    """By requests that carry ballast: the broker reads all of one before it answers, even if only
    to say that it wanted none."""
    link, size, rates = connection.bulk(0), MIN_BYTES, []
    await link.session(CONNECT_S)  # a request alone waits for less: TLS takes several round trips
    await link.request(Outgoing(subject, b"x"), timeout_s=LIMIT_S)
    for _ in range(TRIES):
        ballast = os.urandom(size)
        began = time.perf_counter()
        await link.request(Outgoing(subject, ballast), timeout_s=LIMIT_S)
        took_s = time.perf_counter() - began
        rates.append(size / max(took_s - trip_s, took_s / 2))
        if took_s >= LONG_S:
            break
        size = min(2 * size, MAX_BYTES)
    return statistics.median(rates[-TRIES // 2 :])  # the larger ones


async def _offset(connection: Connection, run: str) -> float | None:
    before = time.time()
    try:
        answer = await ask(connection.control, f"STREAM.INFO.{log_stream(run)}")
    except ApiError:
        return None
    after = time.time()
    said = answer.get("ts")
    if not isinstance(said, str):
        return None
    try:
        return parse_time(said) / 1e9 - (before + after) / 2
    except ValueError:
        return None
