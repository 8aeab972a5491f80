"""How far a build is, how fast it goes and when it will be done, in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` parts of the work (bytes of the sources, or units where a source does not
    tell its size), `begun` of them before this process; num_tokens and elapsed_s are its own."""

    what: str
    done: int
    total: int
    begun: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0

    def rate(self) -> float | None:
        """Tokens per second; None before there are any."""
        return self.num_tokens / self.elapsed_s if self.num_tokens and self.elapsed_s else None

    def remaining_s(self) -> float | None:
        """At the rate so far; None while nothing is done."""
        here = self.done - self.begun
        return (self.total - self.done) * self.elapsed_s / here if here > 0 else None

    def text(self) -> str:
        """Such as: writing tokens: 12 %, 3,400,000 tokens, 910,000 a second, 2:05 to go."""
        parts = [f"{self.what}: {100 * self.done // max(1, self.total)} %"]
        rate, left = self.rate(), self.remaining_s()
        if rate is not None:
            parts += [f"{self.num_tokens:,} tokens", f"{rate:,.0f} a second"]
        if left is not None and self.done < self.total:
            parts.append(f"{_clock(left)} to go")
        return ", ".join(parts)


Progress = Callable[[Step], None]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
