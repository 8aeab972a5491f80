"""Appends to the stream of events: expected sequence, atomic batches, retried, never twice.

A time-out is not a failure: the message may be stored, now or later. But an append carries its
expectation, which at most one message ever meets. So it is simply sent again, and when the broker
answers "wrong last sequence", what stands behind the expected sequence tells whether that was us.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from broker.api import ANSWER_S, Stored, get_message, parse, persist
from broker.client import Outgoing
from broker.errors import NO_STREAM, ApiError, LinkDown
from broker.link import Link
from eventlog.codec import event_id
from eventlog.errors import Conflict, EventInvalid, LogUnavailable, RunUnknown

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
# An answer that is lost is asked for again before four heartbeats of at least 1 s are over, after
# which a site that said nothing would be departed (R8).
FIRST_ANSWERS_S = (1.0, 2.0, 2.0)
MAX_IN_FLIGHT = 16  # the server takes 50 unfinished batches a stream, of all its writers
T = TypeVar("T")
_LOOKUPS = 32  # messages asked for at once when a batch is compared


class Appender:
    """Appends of one process to one stream; `prefix` stands before every subject.

    Appends to different subjects run at once, MAX_IN_FLIGHT at most. patience_s: after that
    long without an answer the outcome is reported as unknown.
    """

    def __init__(self, link: Link, stream: str, prefix: str, patience_s: float) -> None:
        self._link, self._stream, self._prefix = link, stream, prefix
        self._patience_s = patience_s
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def append(self, subject: str, payloads: Sequence[bytes], expected: int) -> int:
        """See `EventLog.append`, whose limits the caller has checked."""
        full = self._prefix + subject
        what = f"an append to {subject!r} got no answer, it may be stored or not"
        waits_s = iter(FIRST_ANSWERS_S)

        def send() -> Awaitable[int]:
            wait_s = min(next(waits_s, ANSWER_S), ANSWER_S)
            return self._send(full, payloads, expected, wait_s)

        async with self._slots:
            try:
                return await self._persist(send, what)
            except ApiError as error:
                if error.err_code == NO_STREAM:
                    raise RunUnknown(
                        f"stream {self._stream} is gone: {error}; restore it, and do not go on"
                    ) from error
            stored = await self._persist(lambda: self._find(full, payloads, expected), what)
            if stored is not None:
                return stored
            query = {"last_by_subj": full}
            last = await self._persist(lambda: self._get(query), what)
            raise Conflict(subject, expected, last.sequence if last else 0)

    async def _persist(self, work: Callable[[], Awaitable[T]], what: str) -> T:
        return await persist(work, self._patience_s, LogUnavailable, what)

    async def _send(
        self, subject: str, payloads: Sequence[bytes], expected: int, wait_s: float
    ) -> int:
        """One try. The sequence of the last event; raises ApiError, LinkDown."""
        messages = _messages(subject, payloads, expected)
        timeout_s = wait_s + sum(map(len, payloads)) / (4 << 20)
        answer = parse((await self._link.request(*messages, timeout_s=timeout_s)).data)
        sequence = answer.get("seq")
        if not isinstance(sequence, int) or answer.get("stream") != self._stream:
            raise LinkDown(f"the answer {answer} does not come from stream {self._stream}")
        return sequence

    async def _find(self, subject: str, payloads: Sequence[bytes], expected: int) -> int | None:
        """The last sequence of this very append if it is stored behind `expected`, else None."""
        if expected:
            before = await self._get({"seq": expected})
            if before is None or before.subject != subject:
                return None
        first = await self._get({"seq": expected + 1, "next_by_subj": subject})
        if first is None or _name(first.data) != _name(payloads[0]):
            return None
        for start in range(1, len(payloads), _LOOKUPS):
            part = payloads[start : start + _LOOKUPS]
            places = range(first.sequence + start, first.sequence + start + len(part))
            found = await asyncio.gather(*(self._get({"seq": place}) for place in places))
            for stored, payload in zip(found, part, strict=True):
                if stored is None or stored.subject != subject:
                    return None
                if _name(stored.data) != _name(payload):
                    return None
        return first.sequence + len(payloads) - 1

    async def _get(self, query: Mapping[str, object]) -> Stored | None:
        return await get_message(self._link, self._stream, query)


def _messages(subject: str, payloads: Sequence[bytes], expected: int) -> list[Outgoing]:
    """One message, or the messages of one atomic batch under a new batch id (nats-server 2.12,
    ADR-50): the expectation on the first, the commit on the last."""
    if len(payloads) == 1:
        return [Outgoing(subject, payloads[0], {EXPECTED: str(expected)})]
    batch, messages = uuid.uuid4().hex, []
    for number, payload in enumerate(payloads, start=1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number == 1:
            headers[EXPECTED] = str(expected)
        if number == len(payloads):
            headers["Nats-Batch-Commit"] = "1"
        messages.append(Outgoing(subject, payload, headers))
    return messages


def _name(payload: bytes) -> str | bytes:
    """The event id by which a retry is known; the payload itself where it has none."""
    try:
        return event_id(payload)
    except EventInvalid:
        return payload
