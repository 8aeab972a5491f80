"""A log in memory: for tests, the simulator, and whatever need not outlive its process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from eventlog.chain import Record
from eventlog.local_log import LocalLog


class MemoryLog(LocalLog):
    """An `EventLog` in a list. `clock_ns` gives the records' time, which decides nothing."""

    def __init__(self, run: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        super().__init__(run, clock_ns)
        self._records: list[Record] = []

    def _store(self, records: list[Record]) -> None:
        self._records.extend(records)

    def _load(self, sequences: Sequence[int]) -> list[Record]:
        return [self._records[sequence - 1] for sequence in sequences]
