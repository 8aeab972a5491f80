"""What the live view remembers of a log as trails: how loss and rate went, who was there and when
it trained, what moves, who was refused. Times are the broker's, Unix seconds; memory is bounded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eventlog.codec import Entry
from eventlog.events import (
    BlockCompleted,
    DeltaPublished,
    DeltaRefused,
    Heartbeat,
    RoundCommitted,
    RoundOpened,
    SiteAdmitted,
    SiteDeparted,
    SiteRefused,
    SnapshotSaved,
    Transfer,
    VersionApplied,
)
from eventlog.phases import DOWNLOAD, UPLOAD
from leases.states import is_void
from leases.view import View
from ops.spells import Spells

MAX_ROUNDS = 200  # that a sparkline shows at most
MAX_LIVES = 50  # of one site
MAX_REFUSALS = 20
MAX_SIZES = 64  # versions whose sizes are known: no site is so far behind


@dataclass(slots=True)
class Stay:
    """One life of a site; `until_s` is None while it goes on."""

    since_s: float
    until_s: float | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A delta or a join that was refused."""

    time_s: float
    site: str
    what: str
    code: str
    reason: str


@dataclass(slots=True)
class Trail:
    """Of one site. `up`, `down`: bytes a second of its last whole transfer; `moving`: what its last
    event said is on its way, and when; `sent_bytes`: of its newest delta."""

    stays: deque[Stay] = field(default_factory=lambda: deque(maxlen=MAX_LIVES))
    training: Spells = field(default_factory=Spells)
    up: float | None = None
    down: float | None = None
    moving: tuple[Transfer, float] | None = None
    sent_bytes: int = 0
    version: int | None = None


@dataclass(slots=True)
class Trails:
    """`losses` and `rates` (merged tokens a second) by round; `update_bytes` by version."""

    began_s: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_ROUNDS))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_ROUNDS))
    refusals: deque[Refused] = field(default_factory=lambda: deque(maxlen=MAX_REFUSALS))
    sites: dict[str, Trail] = field(default_factory=dict)
    update_bytes: dict[int, int] = field(default_factory=dict)
    committed_s: float | None = None
    _snapshot: tuple[int, int] | None = None  # version, bytes of the newest
    _since_s: float | None = None  # the last commit, or the first opening

    def note(self, entry: Entry, void: str, view: View) -> None:
        """Remember one event; `view` may have folded others behind it."""
        time_s = entry.record.time_ns / 1e9
        self.began_s = time_s if self.began_s is None else self.began_s
        if is_void(void):
            return
        source, _, name = entry.record.subject.partition(".")
        if source == "site":
            self._of_site(self.site(name), entry, time_s)
        else:
            self._decided(entry, time_s, view)

    def site(self, name: str) -> Trail:
        """Of one site, made where there is none."""
        return self.sites.setdefault(name, Trail())

    def _of_site(self, trail: Trail, entry: Entry, time_s: float) -> None:
        event = entry.event
        trail.moving = None  # whatever it says now is newer
        if isinstance(event, Heartbeat) and event.transfer is not None:
            trail.moving = (event.transfer, time_s)
        elif isinstance(event, BlockCompleted):
            trail.training.add(time_s - event.seconds, time_s)
        elif isinstance(event, DeltaPublished):
            trail.sent_bytes = event.num_bytes
        elif isinstance(event, VersionApplied):
            self._applied(trail, event)

    def _applied(self, trail: Trail, event: VersionApplied) -> None:
        up_s, down_s = event.seconds.get(UPLOAD, 0.0), event.seconds.get(DOWNLOAD, 0.0)
        if trail.sent_bytes and up_s > 0:
            trail.up, trail.sent_bytes = trail.sent_bytes / up_s, 0
        came = self.to_fetch(trail.version, event.version) if event.source == "update" else None
        if event.source == "snapshot" and self._snapshot and self._snapshot[0] == event.version:
            came = self._snapshot[1]
        if came and down_s > 0:
            trail.down = came / down_s
        trail.version = event.version

    def to_fetch(self, held: int | None, wanted: int) -> int | None:
        """Bytes of the updates from a version to another; None where they are not all known."""
        versions = range(held + 1, wanted + 1) if held is not None else range(0)
        sizes = [self.update_bytes.get(version) for version in versions]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    def _decided(self, entry: Entry, time_s: float, view: View) -> None:
        match entry.event:
            case SiteAdmitted(site=site):
                self.site(site).stays.append(Stay(time_s))
            case SiteDeparted(site=site, code=code):
                trail = self.site(site)
                trail.moving, trail.version = None, None
                if trail.stays:
                    trail.stays[-1].until_s, trail.stays[-1].code = time_s, code
            case SiteRefused(site=site, code=code, reason=reason):
                self.refusals.append(Refused(time_s, site, "join", code, reason))
            case DeltaRefused(site=site, code=code, reason=reason):
                self.refusals.append(Refused(time_s, site, "delta", code, reason))
            case RoundOpened():
                self._since_s = time_s if self._since_s is None else self._since_s
            case SnapshotSaved(version=version, num_bytes=num_bytes):
                self._snapshot = (version, num_bytes)
            case RoundCommitted() as event:
                self._committed(event, time_s, view)

    def _committed(self, event: RoundCommitted, time_s: float, view: View) -> None:
        self.committed_s = time_s
        self.update_bytes[event.version] = event.update_bytes
        self.update_bytes.pop(event.version - MAX_SIZES, None)
        row = view.version(event.version)
        if row is not None and row.loss is not None:
            self.losses.append(row.loss)
        if self._since_s is not None and time_s > self._since_s:
            self.rates.append(event.tokens / (time_s - self._since_s))
        self._since_s = time_s
