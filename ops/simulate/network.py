"""The virtual network and log: one history, and for every process a client of it that can fail.

A client keeps the contract of `EventLog`. Below the contract messages are late, lost, doubled and
in the wrong order; acknowledgements get lost, so that an append that is stored is reported as
`LogUnavailable`; a client is cut off for a while. Only the history itself decides what happened.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from eventlog.chain import Record
from eventlog.errors import AtollError, LogDamaged, LogUnavailable
from ops.simulate.history import History, Reader
from ops.simulate.loop import VirtualLoop

TIMEOUT_S = 2.0  # after which an append without an answer is given up
AGAIN_S = 1.5  # within which whoever gave up asks again, and that arrives
NOTICE_S = 5.0  # within which a connected reader notices that the log went back
REPULL_S = 1.0  # after which a reader asks again for what did not come
DELIVERIES = ("lost", "delayed", "duplicated", "reordered")


class Network:
    """What all clients share. `injected` counts what was really done to somebody."""

    def __init__(self, loop: VirtualLoop, history: History, chance: random.Random) -> None:
        self.loop, self.history, self.chance = loop, history, chance
        self.injected: Counter[str] = Counter()
        self.wrote_on: set[str] = set()  # who kept writing though the log had gone back (R19)
        self.latency_s = (0.002, 0.02)

    def delay_s(self) -> float:
        """One way through the network."""
        return self.chance.uniform(*self.latency_s)


class Client:
    """One process's connection: an `EventLog`."""

    def __init__(self, network: Network, name: str) -> None:
        self.name, self.run = name, network.history.run
        self._net, self._history, self._loop = network, network.history, network.loop
        self.dead = False
        self.breaks = 0
        self.cut_until = 0.0
        self.snapshot_s = 0.0  # that a snapshot takes to come
        self.slow = (0.0, 0.0)  # until when any blob takes long, and how long
        self.trouble: dict[str, float] = {}  # kind of delivery: until when it goes wrong
        self.ambiguous: list[bool] = []  # fates of the next appends: stored or not
        self.hindered_s = 0.0  # until when such an append keeps it from the next one
        self.tells: Callable[[bytes], bytes] | None = None  # what it says instead of its next delta
        self.loses = False  # its next blob is lost behind its back
        self.again = 0  # so many of the next appends arrive twice
        self.seen = 0  # the newest sequence that was handed out
        self.ahead_since: float | None = None  # the log went back behind `seen`

    # -- faults -----------------------------------------------------------------------------------

    def cut(self, seconds: float) -> None:
        """A partition: nothing gets through either way."""
        self.breaks += 1
        self.cut_until = max(self.cut_until, self._loop.time() + seconds)

    def is_cut(self) -> bool:
        return self._loop.time() < self.cut_until

    def lose(self) -> bool:
        """Whether the blob that is being stored is lost."""
        lost, self.loses = self.loses, False
        if lost:
            self._net.injected["blob"] += 1
        return lost

    async def reach(self, error: type[AtollError]) -> None:
        """One round trip. Raises `error` where we are cut off; never returns to the dead."""
        if self.dead:
            await self._loop.create_future()
        if self.is_cut():
            await asyncio.sleep(TIMEOUT_S)
            raise error(f"{self.name} is cut off from the broker")
        await asyncio.sleep(self._net.delay_s() + self._net.delay_s())

    async def carry(self, is_snapshot: bool) -> None:
        """A blob comes in."""
        until, takes_s = self.slow
        takes_s = takes_s if self._loop.time() < until else 0.0
        await asyncio.sleep(max(takes_s, self.snapshot_s if is_snapshot else 0.0))

    # -- EventLog ---------------------------------------------------------------------------------

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """See `EventLog.append`."""
        if self.dead:
            await self._loop.create_future()
        if self.ahead_since is not None:
            connected = max(self.ahead_since, self.cut_until)
            if self._loop.time() > connected + NOTICE_S:
                self._net.wrote_on.add(self.name)
        answer: asyncio.Future[int] = self._loop.create_future()
        if self.tells is not None:
            told = [self.tells(payload) for payload in payloads]
            self.tells, payloads = None if told != list(payloads) else self.tells, told
        stored = self.ambiguous.pop(0) if self.ambiguous else None
        if stored is not None:
            self.hindered_s = self._loop.time() + TIMEOUT_S + AGAIN_S
            self._net.injected["ambiguous, stored" if stored else "ambiguous, not stored"] += 1
        if stored is not False:
            message = (subject, list(payloads), expected_last, None if stored else answer)
            self._loop.outside(self._net.delay_s(), self._arrive, *message)
            if self.again:
                self.again -= 1
                self._net.injected["append sent twice"] += 1
                late_s = self._net.chance.uniform(0.0, 2 * TIMEOUT_S)
                self._loop.outside(late_s, self._arrive, *message[:3], None)
        patience = self._loop.call_later(TIMEOUT_S, self._give_up, answer)
        try:
            return await answer
        finally:
            patience.cancel()

    def _give_up(self, answer: asyncio.Future[int]) -> None:
        if not answer.done():
            answer.set_exception(LogUnavailable(f"no answer to an append of {self.name}"))

    def _arrive(
        self, subject: str, payloads: list[bytes], expected: int, answer: asyncio.Future[int] | None
    ) -> None:
        """The broker has the message, whether or not its sender still lives."""
        if self.is_cut():
            return
        try:
            result: Any = finish(self._history.append(subject, payloads, expected))
        except AtollError as error:
            result = error
        if answer is not None:
            self._loop.outside(self._net.delay_s(), self._answer, answer, result)

    def _answer(self, answer: asyncio.Future[int], result: Any) -> None:
        if answer.done() or self.is_cut():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        """See `EventLog.read`."""
        await self.reach(LogUnavailable)
        found = await self._history.read(after, subjects=subjects, limit=limit)
        self.seen = max(self.seen, found[-1].sequence if found else 0)
        return found

    async def follow(
        self, after: int, *, subjects: Sequence[str] | None = None
    ) -> AsyncIterator[list[Record]]:
        """See `EventLog.follow`: a puller that repairs what the network does to its messages."""
        wanted = None if subjects is None else frozenset(subjects)
        reader, history = Reader(wanted), self._history
        generation = -1  # a reader looks where it stands whenever it begins, or begins again
        last: Record | None = None
        history.attach(reader)
        try:
            while True:
                while self.dead or self.is_cut():
                    await asyncio.sleep(max(0.1, self.cut_until - self._loop.time()))
                if generation != history.generation:
                    generation = history.generation
                    self._check(after, last)
                sent = history.since(after, wanted)
                if not sent:
                    await reader.news()
                    continue
                got, late_s = self._transmit(sent)
                await asyncio.sleep(late_s)
                if self.is_cut() or self.dead or generation != history.generation:
                    continue
                if got:
                    last, after = got[-1], got[-1].sequence
                    self.seen = max(self.seen, after)
                    yield got
                if len(got) < len(sent):
                    await asyncio.sleep(REPULL_S)
        finally:
            history.detach(reader)

    def _transmit(self, sent: list[Record]) -> tuple[list[Record], float]:
        """What comes of messages through the network, in order, and how late."""
        chance, now, late_s = self._net.chance, self._loop.time(), self._net.delay_s()
        if not any(now < until for until in self.trouble.values()):
            return sent, late_s
        messages = list(enumerate(sent))
        for kind in DELIVERIES:
            if now >= self.trouble.get(kind, 0.0) or chance.random() < 0.3:
                continue
            self._net.injected[kind] += 1
            if kind == "lost":
                del messages[chance.randrange(len(messages)) :]
                if not messages:
                    break
            elif kind == "delayed":
                late_s += chance.uniform(0.2, 6.0)
            elif kind == "duplicated":
                messages = [*messages, chance.choice(messages)]
            else:
                chance.shuffle(messages)
        return _in_order(messages), late_s

    def _check(self, position: int, read: Record | None) -> None:
        """R19, as a reader finds it when it comes back to a broker that was restored: the log ends
        before its position, or another event stands there than the one it `read`."""
        last = self._history.end
        if last < position:
            what = f"the log ends at {last}, but had been read through {position}"
            raise LogDamaged(last + 1, what)
        if read is not None and self._history.all()[position - 1] != read:
            raise LogDamaged(position, "another event stands there than the one that was read")

    async def at(self, sequence: int) -> Record | None:
        """See `EventLog.at`."""
        await self.reach(LogUnavailable)
        return await self._history.at(sequence)

    async def last(self, subject: str) -> Record | None:
        """See `EventLog.last`."""
        await self.reach(LogUnavailable)
        return await self._history.last(subject)

    async def last_sequence(self) -> int:
        """See `EventLog.last_sequence`."""
        await self.reach(LogUnavailable)
        return await self._history.last_sequence()

    async def close(self) -> None:
        """Nothing is held."""


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing, as those of a log in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise AssertionError("a log in memory waits for nothing")


def _in_order(raw: list[tuple[int, Record]]) -> list[Record]:
    """The messages from number 0 on that are there without a gap, each once, in order."""
    there = dict(raw)
    got: list[Record] = []
    while len(got) in there:
        got.append(there[len(got)])
    return got
