"""What the live view remembers of a log beside the lease table: times, for ages and rates.

The lease table knows no clock, so that it is the same everywhere; ages and rates are for people
and come from the broker's times of the records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eventlog.codec import Entry
from eventlog.events import COORDINATOR, SITE
from leases.progress import share_of_target
from leases.states import is_void
from leases.view import View

MAX_COMMITS = 6  # the pace is that of the last few rounds


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the run was at a time (Unix seconds, the broker's)."""

    time_s: float
    share: float


@dataclass(slots=True)
class Pace:
    """`heard_s`: the time of each site's last event; `commits`: the last rounds' ends, preceded by
    the first opening; `asked_s`: when, after the coordinator's last word, something was first asked
    of it."""

    heard_s: dict[str, float] = field(default_factory=dict)
    commits: deque[Mark] = field(default_factory=lambda: deque(maxlen=MAX_COMMITS))
    coordinator_s: float | None = None
    asked_s: float | None = None
    back_s: float = 0.0  # when the broker was last seen to come back
    last_s: float = 0.0
    last_sequence: int = 0

    def note(self, entry: Entry, void: str, view: View) -> None:
        """Remember one event; `view` may have folded others behind it."""
        record, kind = entry.record, entry.envelope.type if entry.envelope else ""
        time_s = record.time_ns / 1e9
        self.last_s, self.last_sequence = time_s, record.sequence
        source, _, name = record.subject.partition(".")
        counts = not is_void(void)
        if source == SITE and counts:
            self.heard_s[name] = time_s
        if source == COORDINATOR and counts:
            self.coordinator_s, self.asked_s = time_s, None
        elif kind in ("site.joined", "run.stopped") and self.asked_s is None:
            self.asked_s = time_s
        if kind == "round.opened" and counts and not self.commits:
            self.commits.append(Mark(time_s, 0.0))
        if kind == "round.committed" and counts:
            self.commits.append(Mark(time_s, _share_at(entry, view)))

    def share_per_s(self) -> float | None:
        """How much of the target is done a second, over the last rounds; None before the first."""
        if len(self.commits) < 2:
            return None
        first, last = self.commits[0], self.commits[-1]
        took_s = last.time_s - first.time_s
        return (last.share - first.share) / took_s if took_s > 0 else None

    def silence_s(self, now_s: float, live: int) -> float | None:
        """For how long the coordinator has been silent though it was needed, if it is: since its
        last word while sites are live, else since something was asked of it. While the broker was
        away it could not speak."""
        since = self.coordinator_s if live or self.asked_s is None else self.asked_s
        return None if since is None else max(0.0, now_s - max(since, self.back_s))


def _share_at(entry: Entry, view: View) -> float:
    """The run's share of its target right after a commit."""
    row = view.version(entry.event.version) if entry.event else None  # type: ignore[attr-defined]
    if row is None:
        return 0.0
    return share_of_target(view.config(), view.index(), row.version, row.merged_tokens)
