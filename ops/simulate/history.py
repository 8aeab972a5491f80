"""The one log of a virtual run, and the readers that are told of its news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from eventlog.chain import Record
from eventlog.local_log import FOLLOW_BATCH
from eventlog.memory_log import MemoryLog

ANY = ""
NEAR = 64  # records behind the end, up to which a reader looks at each


class History(MemoryLog):
    """The one log of the run. `on_stored` sees every event at the moment it stands."""

    def __init__(self, run: str, clock_ns: Callable[[], int]) -> None:
        super().__init__(run, clock_ns)
        self.on_stored: Callable[[list[Record]], None] = lambda _: None
        self.generation = 0  # how often the log went back, or was restored
        self.restored: list[Record] | None = None  # what a log that went back had held
        self._readers: dict[str, dict[Reader, None]] = {}  # by what they read, as they came

    def _store(self, records: list[Record]) -> None:
        super()._store(records)
        self.on_stored(records)
        for subject in {record.subject: None for record in records}:
            self._wake_readers(subject, ANY)

    @property
    def end(self) -> int:
        """The last sequence."""
        return len(self._records)

    def all(self) -> list[Record]:
        """Every record, in order."""
        return list(self._records)

    def attach(self, reader: Reader) -> None:
        """Tell a reader of news from now on."""
        for subject in reader.subjects or (ANY,):
            self._readers.setdefault(subject, {})[reader] = None

    def detach(self, reader: Reader) -> None:
        """It reads no more."""
        for subject in reader.subjects or (ANY,):
            self._readers[subject].pop(reader, None)

    def _wake_readers(self, *subjects: str) -> None:
        for subject in subjects:
            for reader in self._readers.get(subject, ()):
                reader.wake()

    def since(self, after: int, subjects: frozenset[str] | None) -> list[Record]:
        """What a reader at a position has not read, a batch of it."""
        if len(self._records) - after > NEAR:
            wanted = None if subjects is None else sorted(subjects)
            return self._load(self._index.select(after, wanted, FOLLOW_BATCH))
        rest = self._records[after:]
        return rest if subjects is None else [one for one in rest if one.subject in subjects]

    def last_of(self, subject: str) -> int:
        """The subject's last sequence."""
        return self._index.last(subject)

    def replace(self, records: Sequence[Record]) -> None:
        """Hold these records from now on: an older state of the log, or a restored one."""
        self._records = list(records)
        self._index = type(self._index)()
        for record in self._records:
            self._index.add(record.subject)
        self.generation += 1
        self._wake_readers(*self._readers)


class Reader:
    """A follower's place in the queue for news: told at once, or remembered until it asks."""

    __slots__ = ("_future", "_news", "subjects")

    def __init__(self, subjects: frozenset[str] | None) -> None:
        self.subjects = subjects
        self._news = True
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """There may be something new."""
        self._news = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def news(self) -> None:
        """Return when there may be something that was not there at the last return."""
        if not self._news:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
            self._future = None
        self._news = False
