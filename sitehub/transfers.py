"""The transfers of a hub that go on just now, as its heartbeats tell them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from eventlog.blobs import Progress
from eventlog.events import Transfer


@dataclass(slots=True)
class _Going:
    """`first_bytes`: there before this attempt."""

    way: Literal["up", "down"]
    began: float
    now: float
    first_bytes: int
    done_bytes: int
    of_bytes: int


@dataclass(slots=True)
class Transfers:
    """Blobs on their way, by name. A transfer is known once it says its first progress."""

    going: dict[str, _Going] = field(default_factory=dict)

    def begin(self, way: Literal["up", "down"], name: str, clock: Callable[[], float]) -> Progress:
        """The callback that a blob store is to tell its progress; a retry begins anew."""
        self.end(name)

        def report(done: int, total: int) -> None:
            now, known = clock(), self.going.get(name)
            if known is None:
                self.going[name] = _Going(way, now, now, done, done, total)
            else:
                known.now, known.done_bytes, known.of_bytes = now, done, total

        return report

    def end(self, name: str) -> None:
        """It is over, one way or the other."""
        self.going.pop(name, None)

    def largest(self) -> Transfer | None:
        """The one with the most bytes left; None where nothing moves."""
        left = [one for one in self.going.values() if one.done_bytes < one.of_bytes]
        if not left:
            return None
        one = max(left, key=lambda one: one.of_bytes - one.done_bytes)
        took_s = one.now - one.began
        return Transfer(
            way=one.way,
            done_bytes=one.done_bytes,
            of_bytes=one.of_bytes,
            bytes_per_s=(one.done_bytes - one.first_bytes) / took_s if took_s > 0 else 0.0,
        )
