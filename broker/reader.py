"""Reading the stream of events: in order, contiguous, from a position, through every outage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from broker.api import get_message, persist, stream_info
from broker.errors import NO_STREAM, ApiError, EmptyMessage, LinkDown
from broker.feed import Delivery, Feed
from broker.link import Link
from eventlog.chain import Record
from eventlog.errors import LogDamaged, LogUnavailable
from eventlog.log import SUBJECT

_BACKOFF_S = (0.05, 1.0)
_LOOKUPS = 128  # messages asked for at once
_MANY = 10_000  # records held before they are handed out
_SLICE_S = 0.5  # how long a follower waits for a session before it looks whether it is closed


class Reader:
    """Reads of one process from one stream; `prefix` stands before every subject there."""

    def __init__(
        self, link: Link, stream: str, prefix: str, patience_s: float, heartbeat_s: float
    ) -> None:
        self._link, self._stream, self._prefix = link, stream, prefix
        self._patience_s, self._heartbeat_s = patience_s, heartbeat_s
        self._feeds: set[Feed] = set()
        self._closed = asyncio.Event()

    async def read(self, after: int, subjects: Sequence[str] | None, limit: int) -> list[Record]:
        """See `EventLog.read`."""
        filters = self._filters(subjects)
        if limit < 1 or (not filters and subjects is not None):
            return []
        what = f"the log cannot be read after {after}"
        return await persist(
            lambda: self._read_once(Cursor(after, whole=subjects is None), filters, limit),
            self._patience_s,
            LogUnavailable,
            what,
        )

    async def follow(
        self, after: int, subjects: Sequence[str] | None
    ) -> AsyncIterator[list[Record]]:
        """See `EventLog.follow`; ends when the reader is closed."""
        filters = self._filters(subjects)
        if not filters and subjects is not None:
            await self._closed.wait()
        cursor, delay = Cursor(after, whole=subjects is None), _BACKOFF_S[0]
        ended_by_empty = False
        while not self._closed.is_set():
            try:
                if ended_by_empty and (records := await self._one_by_one(cursor)):
                    yield records
                ended_by_empty = False
                async with self._feed(cursor, filters, None) as (feed, _):
                    while not self._closed.is_set():
                        records = cursor.take(await feed.next(), self._prefix)
                        delay = _BACKOFF_S[0]
                        if records and not self._closed.is_set():
                            yield records
                        cursor.check()
            except EmptyMessage:
                ended_by_empty = True
            except (LinkDown, ApiError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._closed.wait()
                delay = min(2 * delay, _BACKOFF_S[1])

    async def last_sequence(self) -> int:
        """The stream's last sequence. Raises ApiError, LinkDown, LogDamaged."""
        return await self._check_stream(0)

    def close(self) -> None:
        """Followers end."""
        self._closed.set()
        for feed in self._feeds:
            feed.wake()

    async def _read_once(self, cursor: Cursor, filters: list[str], limit: int) -> list[Record]:
        records: list[Record] = []
        async with self._feed(cursor, filters, limit) as (feed, last):
            # the stream's own count where it is exact, rather than the fresh consumer's
            num_there = feed.num_pending if filters else last - cursor.position
            expected = min(limit, num_there)
            while len(records) < expected:
                try:
                    records += cursor.take(await feed.next(), self._prefix)
                except EmptyMessage:
                    return await self._read_on(cursor, records, filters, limit)
                if self._closed.is_set():
                    raise LogUnavailable("the log was closed while it was read; open it again")
                cursor.check()
        return records[:limit]

    async def _read_on(
        self, cursor: Cursor, records: list[Record], filters: list[str], limit: int
    ) -> list[Record]:
        """The same read behind an empty message."""
        records += await self._one_by_one(cursor)
        if len(records) >= limit:
            return records[:limit]
        return records + await self._read_once(cursor, filters, limit - len(records))

    async def _one_by_one(self, cursor: Cursor) -> list[Record]:
        """What follows in the whole log, each message by a request of its own: who wrote one empty
        message may have written many. Of a filtered log nothing. Raises ApiError, LinkDown."""
        if not cursor.whole:
            return []
        records: list[Record] = []
        while True:
            places = range(cursor.position + 1, cursor.position + 1 + _LOOKUPS)
            found = await asyncio.gather(
                *(get_message(self._link, self._stream, {"seq": place}) for place in places)
            )
            there = [one for one in found if one is not None]
            deliveries = [
                Delivery(one.sequence, place, one.subject, one.time_ns, one.data)
                for place, one in enumerate(there, start=cursor.place + 1)
            ]
            records += cursor.take(deliveries, self._prefix)
            if len(there) < _LOOKUPS or there[-1].data or len(records) >= _MANY:
                return records

    @contextlib.asynccontextmanager
    async def _feed(
        self, cursor: Cursor, filters: list[str], limit: int | None
    ) -> AsyncIterator[tuple[Feed, int]]:
        """A feed from the cursor on, and the stream's last sequence just before."""
        session = await self._link.session(_SLICE_S)
        last = await self._check_stream(cursor.position)
        await self._check_last(cursor)
        feed = await Feed.open(
            session,
            self._stream,
            filters,
            cursor.position,
            limit=limit,
            heartbeat_s=self._heartbeat_s,
        )
        cursor.place = 0
        self._feeds.add(feed)
        try:
            yield feed, last
        finally:
            self._feeds.discard(feed)
            await feed.close()

    async def _check_stream(self, position: int) -> int:
        """R19: the stream still holds everything up to our position, and nothing was removed."""
        try:
            state = (await stream_info(self._link, self._stream))["state"]
        except ApiError as error:
            if error.err_code != NO_STREAM:
                raise
            raise LogDamaged(1, f"stream {self._stream} is gone; restore it") from error
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if last < position:
            raise LogDamaged(
                last + 1, f"the log ends at {last}, but it was read up to {position} before"
            )
        if first > 1:
            raise LogDamaged(1, f"the broker has lost the events before {first}; restore them")
        if state.get("num_deleted", 0):
            raise LogDamaged(await self._first_deleted(), "the broker has lost it; restore it")
        return last

    async def _check_last(self, cursor: Cursor) -> None:
        """R19: at our position still stands what we read there. A log that went back may have grown
        past it since, so its length says nothing."""
        read = cursor.last
        if read is None:
            return
        found = await get_message(self._link, self._stream, {"seq": read.sequence})
        there = found and Record(
            found.sequence, found.subject.removeprefix(self._prefix), found.time_ns, found.data
        )
        if there != read:
            raise LogDamaged(read.sequence, "another event stands there than the one that was read")

    async def _first_deleted(self) -> int:
        info = await stream_info(self._link, self._stream, {"deleted_details": True})
        return min(map(int, info["state"].get("deleted") or [1]))

    def _filters(self, subjects: Sequence[str] | None) -> list[str]:
        for subject in subjects or ():
            if not SUBJECT.match(subject):
                raise ValueError(f"{subject!r} is no subject of a log")
        return [self._prefix + subject for subject in sorted(set(subjects or ()))]


class Cursor:
    """A position in the log, and whether what comes follows it without a gap.

    `place` is the consumer's count: it shows a message lost on the way (read again from here),
    the sequence shows one that the stream has lost (damage). A filtered read cannot see the
    latter by its sequences; its subjects are contiguous by their own links (R16).
    """

    def __init__(self, position: int, *, whole: bool) -> None:
        self.position, self.place = position, 0
        self.last: Record | None = None  # what was read at the position
        self.whole = whole
        self._problem: Exception | None = None

    def take(self, deliveries: Sequence[Delivery], prefix: str) -> list[Record]:
        """The records up to the first one that does not follow; `check` raises the reason."""
        records: list[Record] = []
        for delivery in deliveries:
            if delivery.place != self.place + 1:
                self._problem = LinkDown(f"a message was lost behind {self.position}")
                break
            if self.whole and delivery.sequence != self.position + 1:
                text = f"it is missing; the next event the broker has is {delivery.sequence}"
                self._problem = LogDamaged(self.position + 1, text)
                break
            self.place, self.position = delivery.place, delivery.sequence
            subject = delivery.subject.removeprefix(prefix)
            self.last = Record(delivery.sequence, subject, delivery.time_ns, delivery.data)
            records.append(self.last)
        return records

    def check(self) -> None:
        """Raises LinkDown where reading must start anew from the position, LogDamaged on a gap."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
