"""What the doctor finds: each with what, why it matters, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: which it is, the same for ever; `level`: bad where something will not work, note
    where it may be worse than it could be; `what`, `why`, `todo` for a person (`todo` is '' where
    nothing is to be done); `measured`: numbers behind it."""

    check: str
    level: Level
    what: str
    why: str
    todo: str = ""
    measured: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return asdict(self)
