"""The `EventLog` protocol: one run's append-only, totally ordered log.

Implementations: `eventlog.memory_log`, `eventlog.file_log` and `broker.jetstream_log`. All pass
the same contract suite (tests/contract). Total order is the sequence, counted from 1 without gaps.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from eventlog.chain import Record

SUBJECT = re.compile(r"(coordinator|operator|planner|(site|agent)\.[a-z0-9][a-z0-9-]{0,62})\Z")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")  # of runs and sites: one whole NATS token

MAX_BATCH = 500  # events of one atomic append
MAX_PAYLOAD_BYTES = 1 << 20


class EventLog(Protocol):
    """What every implementation guarantees.

    `append` is atomic and idempotent: either all payloads stand, in order and side by side in the
    sequence, or none. It succeeds only where the subject's last sequence is `expected_last`
    (0: the subject is empty). A payload carries its event id, so a retry after a lost
    acknowledgement finds its own event and reports its sequence instead of a `Conflict`.
    """

    run: str

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """Append 1 to MAX_BATCH payloads; the sequence of the last one.

        Raises Conflict (nothing written), LogUnavailable (unknown; the same call may be made
        again), ValueError (a subject, size or number outside the limits: a bug of the caller).
        """
        ...

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        """Up to `limit` records with sequence > `after`, of these subjects (None: all), in order;
        an empty list at the end. Raises LogDamaged on a gap (whole log), LogUnavailable."""
        ...

    def follow(
        self, after: int, *, subjects: Sequence[str] | None = None
    ) -> AsyncIterator[list[Record]]:
        """Batches of one or more records after `after`, for ever: waits at the end for what comes.

        Survives outages by itself and goes on from its position; raises LogDamaged on a gap.
        """
        ...

    async def at(self, sequence: int) -> Record | None:
        """The record at a sequence, or None where there is none."""
        ...

    async def last(self, subject: str) -> Record | None:
        """The newest record of a subject, or None."""
        ...

    async def last_sequence(self) -> int:
        """The newest sequence of the log; 0 when it is empty."""
        ...

    async def close(self) -> None:
        """Release connections and handles; open followers end."""
        ...


def check_append(subject: str, payloads: Sequence[bytes]) -> None:
    """The limits that every implementation enforces before it writes. Raises ValueError."""
    if not SUBJECT.match(subject):
        raise ValueError(f"{subject!r} is no subject of a log")
    if not 1 <= len(payloads) <= MAX_BATCH:
        raise ValueError(f"an append holds 1 to {MAX_BATCH} events, not {len(payloads)}")
    for payload in payloads:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"an event holds at most {MAX_PAYLOAD_BYTES} bytes")
