"""What the logs without a broker share: checks, idempotent appends, filtered reads, followers.

A `LocalLog` keeps an index of which subject holds which sequences, 8 bytes an event; where the
records themselves are kept is the business of `MemoryLog` and `FileLog`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

from eventlog.chain import Record
from eventlog.codec import event_id
from eventlog.errors import Conflict, EventInvalid, LogUnavailable
from eventlog.log import check_append

FOLLOW_BATCH = 1000  # records a follower hands out at once, at most


class SubjectIndex:
    """Which sequences each subject holds, and how many records there are in all."""

    def __init__(self) -> None:
        self.num_records = 0
        self._sequences: dict[str, array[int]] = {}

    def add(self, subject: str) -> int:
        """Note the next record's subject; its sequence."""
        self.num_records += 1
        self._sequences.setdefault(subject, array("Q")).append(self.num_records)
        return self.num_records

    def last(self, subject: str) -> int:
        """The subject's last sequence, 0 where it is empty."""
        held = self._sequences.get(subject)
        return held[-1] if held else 0

    def select(self, after: int, subjects: Sequence[str] | None, limit: int) -> Sequence[int]:
        """Up to `limit` sequences after `after`, of these subjects (None: all), in order."""
        if subjects is None:
            first = max(after, 0) + 1
            return range(first, min(first + limit, self.num_records + 1))
        parts = []
        for subject in set(subjects):
            held = self._sequences.get(subject, array("Q"))
            begin = bisect_right(held, max(after, 0))
            parts.append(held[begin : begin + limit])
        return list(islice(heapq.merge(*parts), limit))


class LocalLog(ABC):
    """An `EventLog` in this process. An append takes effect between two steps of the event loop,
    so tasks that append at once are serialised, and exactly one of equal expectations wins."""

    def __init__(self, run: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.run = run
        self._clock_ns = clock_ns
        self._index = SubjectIndex()
        self._closed = False
        self._news = asyncio.Event()

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """See `EventLog.append`."""
        check_append(subject, payloads)
        self._check_open()
        actual = self._index.last(subject)
        if actual != expected_last:
            return self._stored_before(subject, payloads, expected_last, actual)
        first, now = self._index.num_records + 1, self._clock_ns()
        self._store(
            [Record(first + i, subject, now, bytes(part)) for i, part in enumerate(payloads)]
        )
        for _ in payloads:
            self._index.add(subject)
        self._wake()
        return self._index.num_records

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        """See `EventLog.read`."""
        self._check_open()
        self._refresh()
        return self._load(self._index.select(after, subjects, limit))

    async def follow(
        self, after: int, *, subjects: Sequence[str] | None = None
    ) -> AsyncIterator[list[Record]]:
        """See `EventLog.follow`; ends when the log is closed."""
        while not self._closed:
            records = await self.read(after, subjects=subjects, limit=FOLLOW_BATCH)
            if records:
                after = records[-1].sequence
                yield records
            else:
                await self._wait()

    async def at(self, sequence: int) -> Record | None:
        """See `EventLog.at`."""
        self._check_open()
        self._refresh()
        if not 1 <= sequence <= self._index.num_records:
            return None
        return self._load([sequence])[0]

    async def last(self, subject: str) -> Record | None:
        """See `EventLog.last`."""
        self._check_open()
        self._refresh()
        return await self.at(self._index.last(subject))

    async def last_sequence(self) -> int:
        """See `EventLog.last_sequence`."""
        self._check_open()
        self._refresh()
        return self._index.num_records

    async def close(self) -> None:
        """Let go of everything held; open followers end. A second close does nothing."""
        self._closed = True
        self._wake()

    @abstractmethod
    def _store(self, records: list[Record]) -> None:
        """Keep the records of one append, wholly or not at all."""

    @abstractmethod
    def _load(self, sequences: Sequence[int]) -> list[Record]:
        """The records at these sequences, which exist."""

    async def _wait(self) -> None:
        """Return when there may be news."""
        await self._news.wait()

    def _refresh(self) -> None:
        """Take note of what other processes wrote; here there are none."""
        return

    def _wake(self) -> None:
        # Each round of waiting has an event of its own: nobody has to clear one that others await.
        self._news.set()
        if not self._closed:
            self._news = asyncio.Event()

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"the log of run {self.run!r} is closed; open it again")

    def _stored_before(
        self, subject: str, payloads: Sequence[bytes], expected: int, actual: int
    ) -> int:
        """The sequence that this very append got when it was made before; else Conflict."""
        there = self._load(self._index.select(expected, [subject], len(payloads)))
        same = [_name(record.payload) for record in there] == [_name(part) for part in payloads]
        if same and self._stands_on(subject, expected):
            return there[-1].sequence
        raise Conflict(subject, expected, actual)

    def _stands_on(self, subject: str, sequence: int) -> bool:
        """Whether a sequence is 0 or one of this subject's."""
        if sequence == 0:
            return True
        return list(self._index.select(sequence - 1, [subject], 1)) == [sequence]


def _name(payload: bytes) -> str | bytes:
    """The event id by which a retry is known; the payload itself where it has none."""
    try:
        return event_id(payload)
    except EventInvalid:
        return payload
