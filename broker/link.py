"""A link to the broker that heals by itself: one session after another, with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from broker.client import Message, Outgoing
from broker.credentials import Credentials
from broker.errors import LinkDown, Refused
from broker.session import PING_S, Session, end_task

CONNECT_S = 3.0
_BACKOFF_S = (0.1, 2.0)
_SESSION_S = 0.5  # a request waits no longer for a link; whoever has more patience tries again


class Link:
    """`num_breaks` counts the sessions that ended without our doing."""

    def __init__(
        self,
        urls: Sequence[str],
        name: str,
        identity: Credentials | None = None,
        *,
        bulk: bool = False,
    ) -> None:
        self._urls, self._name, self._identity, self._bulk = urls, name, identity, bulk
        self.retry_s = _BACKOFF_S[1]  # the longest pause between two tries
        self._ping_s = PING_S
        self._session: Session | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self.num_breaks = 0

    @property
    def connected(self) -> bool:
        return self._session is not None and not self._session.ended.is_set()

    async def start(self) -> Session:
        """Open the first session and keep the link from here on. Raises LinkDown, Refused."""
        self._session = await self._open()
        self._up.set()
        self.keep()
        return self._session

    def keep(self) -> None:
        """Start to connect in the background, unless that goes on already."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.ensure_future(self._keep())

    async def session(self, timeout_s: float) -> Session:
        """The present session, waited for. Raises LinkDown when there is none in time."""
        present = self._session
        if present is not None and not present.ended.is_set() and not self._closed:
            return present
        self.keep()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._closed:
                    await self._up.wait()
                    session = self._session
                    if session is not None and not session.ended.is_set():
                        return session
                    await asyncio.sleep(0.01)  # it ended; its keeper has not noticed yet
        raise LinkDown("the connection is closed" if self._closed else "the broker is away")

    def ping_every(self, seconds: float) -> None:
        """See `Session.ping_every`; of this session and those that follow."""
        self._ping_s = seconds
        if self._session is not None:
            self._session.ping_every(seconds)

    async def request(self, *messages: Outgoing, timeout_s: float = 5.0) -> Message:
        """See `Session.request`. Raises LinkDown, soon where there is no session."""
        session = await self.session(_SESSION_S)
        return await session.request(*messages, timeout_s=timeout_s)

    async def close(self) -> None:
        self._closed = True
        self._up.set()
        if self._keeper is not None:
            await end_task(self._keeper)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _keep(self) -> None:
        while True:
            session = self._session
            if session is not None:
                await session.finished()
                self.num_breaks += 1
                self._up.clear()
                self._session = None
                await session.close()
            self._session = await self._reopen()
            self._up.set()

    async def _reopen(self) -> Session:
        delay = _BACKOFF_S[0]
        while True:
            try:
                return await self._open()
            except (LinkDown, Refused):  # who was let in before may be again: for ever
                # Many sites lose one broker at the same moment: spread their return.
                await asyncio.sleep(min(delay * random.uniform(0.5, 1.5), self.retry_s))
                delay = min(2 * delay, self.retry_s)

    async def _open(self) -> Session:
        return await Session.open(
            self._urls, self._name, CONNECT_S, self._identity, bulk=self._bulk, ping_s=self._ping_s
        )
