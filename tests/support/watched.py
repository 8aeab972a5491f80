"""A run's log as a test watches it: every event as it comes, folded, with what can be asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from broker.connection import connect
from broker.credentials import Credentials
from broker.jetstream_log import JetStreamLog
from eventlog.codec import Entry
from eventlog.events import COORDINATOR, Cut, Event, LeaseStolen, RoundClosed, RoundCommitted
from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View

E = TypeVar("E", bound=Event)


class History:
    """Events of one run from its first on, in `entries`, and the lease table of exactly these in
    `view`. `voids`: (sequence, type, why) of those that the fold says count for nothing."""

    def __init__(self, run: str) -> None:
        self.entries: list[Entry] = []
        self.voids: list[tuple[int, str, str]] = []
        self.news = asyncio.Event()
        self.mark = 0  # a sequence that a test remembers
        self._projection = Projection(":memory:", [LeaseTable()], run)
        self.view = View(self._projection.db)

    @classmethod
    @contextlib.asynccontextmanager
    async def watched(
        cls, url: str, run: str, identity: Credentials | None = None
    ) -> AsyncIterator[History]:
        """A history that follows the run until the end of the context, through outages."""
        history = cls(run)
        async with await connect(url, name="watcher", identity=identity) as connection:
            log = await JetStreamLog.open(connection, run)
            task = asyncio.create_task(history._follow(log))
            try:
                yield history
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await log.close()
                history._projection.close()

    @property
    def last(self) -> int:
        """The newest sequence that has come."""
        return self.entries[-1].record.sequence if self.entries else 0

    def of(self, kind: type[E], source: str = "", after: int = 0) -> list[tuple[int, E]]:
        """(sequence, event) of every event of a type, of one source or all, behind a sequence."""
        return [
            (entry.record.sequence, entry.event)
            for entry in self.entries[after:]
            if isinstance(entry.event, kind) and source in ("", entry.record.subject)
        ]

    def new_versions(self, after: int) -> int:
        """Versions committed behind a sequence."""
        return len(self.of(RoundCommitted, after=after))

    def merged(self, after: int = 0) -> list[tuple[int, Cut]]:
        """(sequence of the commit, member) of every delta that was merged, in order."""
        cuts = dict(self.of(RoundClosed))
        return [
            (sequence, member)
            for sequence, commit in self.of(RoundCommitted, after=after)
            for member in cuts[commit.cut[0]].deltas
        ]

    def source(self, sequence: int) -> str:
        """Who wrote the event at a sequence."""
        return self.entries[sequence - 1].record.subject

    def states(self, site: str) -> list[str]:
        """The states of the blocks that a site's living incarnation holds; none without one."""
        one = self.view.live_at(site)
        return [block.state for block in self.view.held(one.token[0])] if one else []

    def wrong_decisions(self) -> list[tuple[int, str, str]]:
        """The coordinator's decisions that count for nothing, but for a steal that a start
        overtook: a block is judged where the steal stands, and stays with who trains it (R1)."""
        overtaken = "is training, not an unstarted one of it"
        return [
            (sequence, kind, why)
            for sequence, kind, why in self.voids
            if self.source(sequence) == COORDINATOR
            and not (kind == LeaseStolen.type and why.endswith(overtaken))
        ]

    async def _follow(self, log: JetStreamLog) -> None:
        async for records in log.follow(0):
            for entry, whys in self._projection.apply(records):
                self.entries.append(entry)
                if whys[0] and entry.envelope is not None:
                    self.voids.append((entry.record.sequence, entry.envelope.type, whys[0]))
            self.news.set()
