"""Two small structures of the agenda: amounts in order of a key, and timers that may be put off."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Key = tuple[str, int]  # site, incarnation


@dataclass(slots=True)
class Ranks:
    """Keys in order, each with an amount."""

    _keys: list[Key] = field(default_factory=list)
    _amounts: dict[Key, int] = field(default_factory=dict)

    def add(self, key: Key, amount: int) -> None:
        """Put a key that is not there."""
        insort(self._keys, key)
        self._amounts[key] = amount

    def discard(self, key: Key) -> int:
        """Take a key away; its amount, 0 where it was not there."""
        if key not in self._amounts:
            return 0
        del self._keys[bisect_left(self._keys, key)]
        return self._amounts.pop(key)

    def clear(self) -> None:
        self._keys.clear()
        self._amounts.clear()

    def __iter__(self) -> Iterator[tuple[Key, int]]:
        """Keys and amounts, in order."""
        return ((key, self._amounts[key]) for key in self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(slots=True)
class Timers:
    """One time for each incarnation. A later time costs nothing until the earlier one is due."""

    _times: dict[int, int] = field(default_factory=dict)
    _queued: dict[int, int] = field(default_factory=dict)  # the earliest entry of each in the heap
    _heap: list[tuple[int, int]] = field(default_factory=list)

    def set(self, seq: int, time: int) -> None:
        self._times[seq] = time
        if time < self._queued.get(seq, time + 1):
            self._queued[seq] = time
            heapq.heappush(self._heap, (time, seq))

    def due(self, now: int, is_there: Callable[[int], bool]) -> list[int]:
        """Whose time is not after `now`; those that are not there any more are forgotten."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            queued, seq = heapq.heappop(self._heap)
            if self._queued.get(seq) != queued:
                continue
            del self._queued[seq]
            if not is_there(seq):
                del self._times[seq]
            elif self._times[seq] > now:
                self.set(seq, self._times[seq])
            else:
                found.append(seq)
        for seq in found:
            self.set(seq, self._times[seq])
        return found

    def clear(self) -> None:
        self._times.clear()
        self._queued.clear()
        self._heap.clear()
