"""What the agent may cost a centre: so many of each kind of command in any window of time.

Stricter than a token bucket, which after a pause lets through twice its size: here no window of
the stated length, wherever it begins, holds more. What was spent is kept in a file that all agents
of one user on one login node share, by centre: neither a restart nor a second site resets it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

_HORIZON_S = 86_400.0  # the longest window; what is older is forgotten
_JITTER = 0.2  # of a pause: agents that were started together do not stay together
_LOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `limit` within any `span_s` seconds."""

    limit: int
    span_s: float

    def wait_s(self, spent: list[float], now: float) -> float:
        """How long until one more is allowed; 0: now. Instants in the future, as after a clock
        was set back, count as just now: nothing is gained by it."""
        recent = sorted(min(at, now) for at in spent if at > now - self.span_s)
        if self.limit <= 0:
            return self.span_s
        if len(recent) < self.limit:
            return 0.0
        return recent[-self.limit] + self.span_s - now


@dataclass(slots=True)
class Ledger:
    """What was spent at one centre. `caps` by kind: polls, probes, submissions."""

    path: Path
    caps: Mapping[str, Cap]

    def take(self, kind: str, now: float) -> float:
        """Spend one; 0 where it was allowed, and then it is on disk before anything is run;
        otherwise how long to wait. `now`: epoch seconds."""
        with self._open() as spent:
            mine = spent.setdefault(kind, [])
            wait_s = self.caps[kind].wait_s(mine, now)
            if wait_s <= 0:
                mine.append(now)
            return wait_s

    def wait_s(self, kind: str, now: float) -> float:
        """How long until one more would be allowed; spends nothing."""
        return self.caps[kind].wait_s(self._read().get(kind, []), now)

    @contextmanager
    def _open(self) -> Iterator[dict[str, list[float]]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock", timeout=_LOCK_S):
            spent = self._read()
            yield spent
            newest = max((at for ats in spent.values() for at in ats), default=0.0)
            kept = {
                kind: [at for at in ats if at > newest - _HORIZON_S] for kind, ats in spent.items()
            }
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(kept))
            os.replace(beside, self.path)

    def _read(self) -> dict[str, list[float]]:
        """What the file says; a torn or foreign file is nothing spent, which one run mends."""
        try:
            said = json.loads(self.path.read_text())
            return {str(kind): [float(at) for at in ats] for kind, ats in said.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


@dataclass(slots=True)
class Backoff:
    """Pauses between tries that fail: doubled each time up to a longest one, with jitter, so that
    a controller in trouble is asked less and less. `rng`: a source of the jitter."""

    first_s: float = 30.0
    longest_s: float = 1800.0
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0
    until: float = 0.0

    def failed(self, now: float) -> None:
        """One more failure in a row."""
        pause_s = min(self.longest_s, self.first_s * 2.0**self.failures)
        self.failures = min(self.failures + 1, 30)
        self.until = now + pause_s * (1 + _JITTER * self.rng.random())

    def worked(self) -> None:
        """It answers: the next failure is the first again."""
        self.failures, self.until = 0, 0.0

    def wait_s(self, now: float) -> float:
        """How long to leave it alone."""
        return max(0.0, self.until - now)
