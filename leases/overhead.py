"""What the exchange costs, by round and site: a reading of the log for people.

Seconds come from the clocks of those who measured them. A site's round lasts from one version that
it says it holds to the next one, by its own clock, so its stall and the time it is a share of are
measured by the same site over the same span. What training stood still for is the overhead; the
other phases run beside it, or are part of it, according to the run's overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from eventlog.codec import Entry
from eventlog.events import RoundCommitted, SnapshotSaved, VersionApplied
from eventlog.phases import APPLY, BLOCKED, DOWNLOAD, ENCODE, EVALUATE, IDLE, UPLOAD, WAIT
from leases.states import is_void


@dataclass(frozen=True, slots=True)
class Row:
    """One site's exchange that ended in a version: seconds. `wait`: for other sites, without the
    coordinator's own work; `merge`: that work (fetch, merge, upload of the update); `snapshot`: the
    coordinator's, of the version before, where it stored one; `stall`: the trainer stood still,
    `blocked` by the exchange, `idle`, or to `evaluate` a version; `wall`: the round's."""

    site: str
    version: int
    encode: float
    upload: float
    wait: float
    merge: float
    download: float
    apply: float
    snapshot: float
    blocked: float
    idle: float
    evaluate: float
    stall: float
    wall: float

    @property
    def share(self) -> float:
        """Of wall time that the trainer stood still; 0 where no time has passed."""
        return self.stall / self.wall if self.wall > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {**asdict(self), "share": self.share}


SECONDS = tuple(name for name in Row.__slots__ if name not in ("site", "version"))


@dataclass(slots=True)
class SiteTotal:
    """A site's rows, summed; and the newest of them."""

    site: str
    num_rounds: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0.0))
    newest: Row | None = None

    @property
    def share(self) -> float:
        """Of wall time that the trainer stood still."""
        return self.seconds["stall"] / self.seconds["wall"] if self.seconds["wall"] > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {"site": self.site, "rounds": self.num_rounds, **self.seconds, "share": self.share}


@dataclass(slots=True)
class Overhead:
    """Fed with every event and the fold's word on it, in order. `on_row` gets each row as it comes;
    kept are the sums."""

    on_row: Callable[[Row], None] = lambda _: None
    sites: dict[str, SiteTotal] = field(default_factory=dict)
    _merges: dict[int, float] = field(default_factory=dict)  # of the newest versions
    _snapshots: dict[int, float] = field(default_factory=dict)
    _last: dict[str, tuple[object, float]] = field(default_factory=dict)  # incarnation, its clock

    def see(self, entry: Entry, void: str) -> None:
        """Take in one event."""
        event, envelope = entry.event, entry.envelope
        if envelope is None or is_void(void):
            return
        if isinstance(event, RoundCommitted):
            self._merges[event.version] = sum(event.seconds.values())
            self._merges.pop(event.version - _VERSIONS, None)
        elif isinstance(event, SnapshotSaved):
            self._snapshots[event.version] = event.seconds
            if len(self._snapshots) > _VERSIONS:
                del self._snapshots[min(self._snapshots)]
        elif isinstance(event, VersionApplied):
            site = envelope.source.partition(".")[2]
            before = self._last.get(site)
            self._last[site] = (envelope.incarnation, envelope.at)
            if before is not None and before[0] == envelope.incarnation:
                self._add(self._row(site, event, max(0.0, envelope.at - before[1])))

    @property
    def share(self) -> float | None:
        """Of all sites' wall time that trainers stood still; None before the first round."""
        wall = sum(one.seconds["wall"] for one in self.sites.values())
        stall = sum(one.seconds["stall"] for one in self.sites.values())
        return stall / wall if wall > 0 else None

    def _row(self, site: str, event: VersionApplied, wall: float) -> Row:
        said, merge = event.seconds, self._merges.get(event.version, 0.0)
        return Row(
            site=site,
            version=event.version,
            encode=said.get(ENCODE, 0.0),
            upload=said.get(UPLOAD, 0.0),
            wait=max(0.0, said.get(WAIT, 0.0) - merge),
            merge=merge,
            download=said.get(DOWNLOAD, 0.0),
            apply=said.get(APPLY, 0.0),
            snapshot=self._snapshots.get(event.version - 1, 0.0),
            blocked=said.get(BLOCKED, 0.0),
            idle=said.get(IDLE, 0.0),
            evaluate=said.get(EVALUATE, 0.0),
            stall=event.stall_s,
            wall=wall,
        )

    def _add(self, row: Row) -> None:
        total = self.sites.setdefault(row.site, SiteTotal(row.site))
        total.num_rounds += 1
        total.newest = row
        for name in SECONDS:
            total.seconds[name] += getattr(row, name)
        self.on_row(row)


_VERSIONS = 64  # of which the coordinator's seconds are kept: no site is so far behind


def table(entries: Iterable[tuple[Entry, str]]) -> list[Row]:
    """All rows of a log, given each event with the fold's word on it, in the log's order."""
    rows: list[Row] = []
    overhead = Overhead(rows.append)
    for entry, void in entries:
        overhead.see(entry, void)
    return rows
