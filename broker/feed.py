"""One life of a pull consumer: overlapping pull requests into a bounded buffer.

The consumer is ephemeral and acknowledges nothing; where it was is known here alone. Whatever goes
wrong with it (broker gone, consumer gone, a message lost on the way, silence) ends the feed with
LinkDown, and whoever reads opens another one behind the last record it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from broker.api import ANSWER_S, API, parse
from broker.client import Message, Outgoing
from broker.errors import NAME_TAKEN, ApiError, EmptyMessage, LinkDown
from broker.session import Listener, Session
from broker.slots import names, reclaim

PULL = 256  # messages of one pull request; a second one goes out when half of two are in
PULL_BYTES = 4 << 20
BUFFER_BYTES = 8 << 20  # held unread, at which no more is asked for
_ENVELOPE_BYTES = 64 << 10  # subjects and protocol around a message
_EXPIRES_S = 20.0
# Between accounts an empty message ends the answers to a request (nats-server: streamed responses),
# so behind one that somebody stored nothing more would come, not even a heartbeat.
EMPTY = "an empty message ended the answers"
_IDLE_S = 60  # a consumer that nobody asks for so long is removed by the broker
_NS = 1_000_000_000


class Delivery(NamedTuple):
    """A message with its place in the stream and in the consumer's own count from 1."""

    sequence: int
    place: int
    subject: str
    time_ns: int
    data: bytes


class Feed:
    """Opened by `open`, ended by `close`. `num_pending`: messages there when it was opened."""

    def __init__(
        self, session: Session, stream: str, limit: int | None, heartbeat_s: float
    ) -> None:
        self._session, self._stream, self._heartbeat_s = session, stream, heartbeat_s
        self._names = names(session)
        self._name = next(self._names)
        # a message larger than what is asked for would never come, nor anything behind it
        self._pull_bytes = max(PULL_BYTES, session.max_payload_bytes + _ENVELOPE_BYTES)
        self._wanted = limit  # messages still to be asked for; None: no end
        self._asked = 0  # messages asked for that have neither come nor been given up
        self._pulls = 0
        self._buffer: list[Delivery] = []
        self._buffer_bytes = 0
        self._news = asyncio.Event()
        self._place = 0  # of the newest message that came
        self._wake = False
        self._patient_until: float | None = None  # while somebody waits
        self._watch: asyncio.TimerHandle | None = None
        self._problem = ""
        self._listener: Listener | None = None
        self._created = False
        self.num_pending = 0

    @classmethod
    async def open(
        cls,
        session: Session,
        stream: str,
        filters: Sequence[str],
        after: int,
        *,
        limit: int | None = None,
        heartbeat_s: float = 5.0,
    ) -> Feed:
        """A feed of what follows `after` on these subjects (none: all), `limit` messages at
        most. Raises ApiError, LinkDown."""
        feed = cls(session, stream, limit, heartbeat_s)
        try:
            await feed._start(filters, after)
        except BaseException:
            await feed.close()
            raise
        return feed

    async def next(self) -> list[Delivery]:
        """What has come since the last call, waited for; empty only after `wake`.

        Raises LinkDown when the feed has ended; what came before was handed out.
        """
        await self._pull()
        if not self._buffer and not self._problem:
            while not (self._buffer or self._problem):
                await self._wait()
                if self._woken():
                    return []
                await self._pull()
        if not self._buffer:
            raise EmptyMessage(self._problem) if self._problem == EMPTY else LinkDown(self._problem)
        taken, self._buffer, self._buffer_bytes = self._buffer, [], 0
        return taken

    async def _wait(self) -> None:
        """Wait for news. The server speaks at least once in a heartbeat while a pull request waits;
        three without a word end the feed."""
        loop = asyncio.get_running_loop()
        self._patient_until = loop.time() + 3 * self._heartbeat_s
        if self._watch is None:
            self._watch = loop.call_at(self._patient_until, self._look)
        try:
            await self._news.wait()
        finally:
            self._patient_until = None

    def _look(self) -> None:
        """Whether a wait has lasted too long. One timer serves many waits: each puts it off."""
        loop, until = asyncio.get_running_loop(), self._patient_until
        self._watch = None
        if until is None or self._news.is_set():
            return
        if loop.time() < until:
            self._watch = loop.call_at(until, self._look)
            return
        self._problem = "the broker has fallen silent"
        self._news.set()

    def wake(self) -> None:
        """Have a waiting `next` return."""
        self._wake = True
        self._news.set()

    def _woken(self) -> bool:
        self._news.clear()
        return self._wake and not self._buffer

    async def close(self) -> None:
        """Let the broker forget the consumer; it does so by itself where this does not reach it."""
        self._session.forget_at_end(self._on_break)
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            await self._listener.stop()
        if self._created:
            with contextlib.suppress(LinkDown):
                subject = f"{API}.CONSUMER.DELETE.{self._stream}.{self._name}"
                inbox = self._listener.inbox if self._listener else ""
                await self._session.publish(Outgoing(subject, reply=f"{inbox}.deleted"))

    async def _start(self, filters: Sequence[str], after: int) -> None:
        self._session.call_at_end(self._on_break)
        self._listener = await self._session.listen(self._take)
        while True:
            try:
                return await self._create(filters, after)
            except ApiError as error:
                self._created = False  # nothing of ours is there to be removed
                if error.err_code != NAME_TAKEN:
                    raise
            # another process of the same user has it, or had it
            name = next(self._names, None)
            self._name = name or await reclaim(self._session, self._stream)

    async def _create(self, filters: Sequence[str], after: int) -> None:
        assert self._listener is not None
        config = {
            "name": self._name,
            "metadata": {"inbox": self._listener.inbox},  # equal to no other process's
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _IDLE_S * _NS,
            "filter_subjects": list(filters),
            "max_waiting": 64,
        }
        body = json.dumps({"stream_name": self._stream, "config": config, "action": "create"})
        subject = f"{API}.CONSUMER.CREATE.{self._stream}.{self._name}"
        request = Outgoing(subject, body.encode())
        self._created = True
        answer = parse((await self._session.request(request, timeout_s=ANSWER_S)).data)
        self.num_pending = int(answer.get("num_pending", 0))

    async def _pull(self) -> None:
        """Ask for more while less than a full request is out and the buffer has room."""
        while self._asked <= PULL and self._buffer_bytes < BUFFER_BYTES and not self._problem:
            batch = PULL if self._wanted is None else min(PULL, self._wanted)
            if batch == 0 or self._listener is None:
                return
            if self._wanted is not None:
                self._wanted -= batch
            self._asked += batch
            self._pulls += 1
            body = {
                "batch": batch,
                "max_bytes": self._pull_bytes,
                "expires": int(max(_EXPIRES_S, 4 * self._heartbeat_s) * _NS),
                "idle_heartbeat": int(self._heartbeat_s * _NS),
            }
            subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            reply = f"{self._listener.inbox}.{self._pulls}"
            await self._session.publish(Outgoing(subject, json.dumps(body).encode(), reply=reply))

    def _take(self, message: Message) -> None:
        if message.subject.endswith(".deleted"):
            return
        if message.status:
            self._take_status(message)
        elif self._problem:
            pass  # of a later request, and without what the one that ended was still to bring
        elif (delivery := _delivery(message)) is None:
            self._problem = f"{message.reply!r} is no reply subject of JetStream"
        else:
            self._buffer.append(delivery)
            self._buffer_bytes += len(delivery.data)
            self._asked -= 1
            self._place = delivery.place
            if not delivery.data and self._session.user is not None:
                self._problem = EMPTY
        self._news.set()

    def _take_status(self, message: Message) -> None:
        """A heartbeat, the end of a pull request, or the end of the consumer."""
        left = message.headers.get("Nats-Pending-Messages")
        if message.status == "100":
            if int(message.headers.get("Nats-Last-Consumer", 0)) > self._place:
                self._problem = "a message was lost on the way"
            return
        if message.status in ("404", "408", "409") and left is not None:
            self._asked -= int(left)
            if self._wanted is not None:
                self._wanted += int(left)
            return
        self._problem = message.headers.get("Description", "").strip() or "the consumer is gone"

    def _on_break(self) -> None:
        self._problem = self._problem or self._session.problem
        self._news.set()


def _delivery(message: Message) -> Delivery | None:
    """Place and time stand in the reply subject: `$JS.ACK.[domain.account.]stream.consumer.
    delivered.sequence.place.time_ns.pending[.random]`."""
    tokens = message.reply.split(".")
    if len(tokens) == 9:
        sequence, place, time_ns = tokens[5:8]
    elif len(tokens) >= 11:
        sequence, place, time_ns = tokens[7:10]
    else:
        return None
    return Delivery(int(sequence), int(place), message.subject, int(time_ns), message.data)
