"""What a report needs of a log beside lease table and audit: times, bytes, and who was there.

Nothing here decides or judges. Times are the broker's, in seconds since the log's first record; a
void event leaves no trace. Memory grows with rounds and incarnations, not with events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from eventlog import events
from eventlog.codec import Entry
from eventlog.config import RunConfig
from leases.blocks import BlockIndex
from leases.goodput import Goodput
from leases.overhead import SECONDS, Overhead, Row
from leases.states import is_void
from ops.spells import Spells

MAX_REFUSALS = 200  # of deltas and joins that are told one by one; the newest are kept


@dataclass(slots=True)
class Life:
    """One incarnation: there from `came_s` until `left_s` (None: it still was at the end)."""

    incarnation: int
    site: str
    came_s: float
    left_s: float | None = None
    code: str = ""
    reason: str = ""


@dataclass(slots=True)
class Round:
    """One round's times and bytes. `delta_bytes`: of the deltas in its cut; `exchange`: seconds per
    phase summed over the `num_rows` sites that told them on the way to its version."""

    round: int
    version: int | None = None
    opened_s: float | None = None
    closed_s: float | None = None
    committed_s: float | None = None
    deltas: int = 0
    delta_bytes: int = 0
    update_bytes: int = 0
    exchange: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0.0))
    num_rows: int = 0


@dataclass(slots=True)
class Tally:
    """What one site did, over all its lives: tokens of completed blocks, deltas and their bytes."""

    trained_blocks: int = 0
    trained_tokens: int = 0
    training_s: float = 0.0
    deltas: int = 0
    delta_bytes: int = 0
    refused: int = 0


@dataclass(slots=True)
class Chronicle:
    """Fed with each event and the fold's word on it (`see`), in order."""

    began_ns: int | None = None
    ended_ns: int = 0
    created: events.RunCreated | None = None
    finished: events.RunFinished | None = None
    finished_s: float | None = None
    lives: dict[int, Life] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    working: dict[str, Spells] = field(default_factory=dict)  # when each site trained
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    terms: list[dict[str, Any]] = field(default_factory=list)
    pauses: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    placement: list[dict[str, Any]] = field(default_factory=list)
    goodput: Goodput = field(default_factory=Goodput)
    _index: BlockIndex | None = None
    _bytes: dict[int, int] = field(default_factory=dict)  # of deltas that are not decided yet
    _cut: list[int] = field(default_factory=list)  # the deltas of the newest
    _made_by: dict[int, int] = field(default_factory=dict)  # version -> round
    _started: dict[tuple[str, int, int], float] = field(default_factory=dict)
    _overhead: Overhead = field(init=False)

    def __post_init__(self) -> None:
        self._overhead = Overhead(self._exchanged)

    @property
    def seconds(self) -> float:
        """From the first record to the last."""
        return 0.0 if self.began_ns is None else (self.ended_ns - self.began_ns) / 1e9

    @property
    def ran_until_s(self) -> float:
        """Until when sites that nothing ended were there: what is written to the log of a run that
        is over, such as evaluations, keeps nobody."""
        return self.seconds if self.finished_s is None else self.finished_s

    def see(self, entry: Entry, void: str) -> None:
        """Take in one event."""
        self.began_ns = entry.record.time_ns if self.began_ns is None else self.began_ns
        self.ended_ns = max(self.ended_ns, entry.record.time_ns)
        self._overhead.see(entry, void)
        self.goodput.see(entry, void)
        if entry.event is None or is_void(void):
            return
        note = _NOTES.get(entry.event.type)
        if note is not None:
            note(self, entry, (entry.record.time_ns - self.began_ns) / 1e9)

    def tally(self, site: str) -> Tally:
        """Of one site, made where there is none."""
        return self.tallies.setdefault(site, Tally())

    def round(self, number: int) -> Round:
        """One round, made where there is none."""
        return self.rounds.setdefault(number, Round(number))

    def _exchanged(self, row: Row) -> None:
        """A site's seconds between two versions belong to the round that made the newer one."""
        one = self.round(self._made_by.get(row.version, row.version))
        one.num_rows += 1
        for name in SECONDS:
            one.exchange[name] += getattr(row, name)

    # -- one method an event, called with the entry and its time ----------------------------------

    def _created(self, entry: Entry, _: float) -> None:
        event = cast(events.RunCreated, entry.event)
        self.created = event
        self._index = BlockIndex(RunConfig.recorded(event.config).seed, event.data)

    def _admitted(self, entry: Entry, at_s: float) -> None:
        event = cast(events.SiteAdmitted, entry.event)
        number = entry.record.sequence
        self.lives[number] = Life(number, event.site, at_s)

    def _departed(self, entry: Entry, at_s: float) -> None:
        event = cast(events.SiteDeparted, entry.event)
        life = self.lives[event.incarnation[0]]
        life.left_s, life.code, life.reason = at_s, event.code, event.reason

    def _opened(self, entry: Entry, at_s: float) -> None:
        self.round(cast(events.RoundOpened, entry.event).round).opened_s = at_s

    def _closed(self, entry: Entry, at_s: float) -> None:
        event = cast(events.RoundClosed, entry.event)
        one = self.round(event.round)
        one.closed_s, one.deltas = at_s, len(event.deltas)
        self._cut = [cut.delta[0] for cut in event.deltas]
        one.delta_bytes = sum(self._bytes.get(delta, 0) for delta in self._cut)

    def _committed(self, entry: Entry, at_s: float) -> None:
        event = cast(events.RoundCommitted, entry.event)
        one = self.round(event.round)
        one.committed_s, one.update_bytes, one.version = at_s, event.update_bytes, event.version
        self._made_by[event.version] = event.round
        for delta in self._cut:
            self._bytes.pop(delta, None)

    def _block_started(self, entry: Entry, at_s: float) -> None:
        event = cast(events.BlockStarted, entry.event)
        self._started[(_site(entry), event.epoch, event.block)] = at_s

    def _block_completed(self, entry: Entry, at_s: float) -> None:
        event, site = cast(events.BlockCompleted, entry.event), _site(entry)
        started = self._started.pop((site, event.epoch, event.block), at_s)
        one = self.tally(site)
        one.trained_blocks += 1
        one.trained_tokens += self._index.tokens(event.block) if self._index else 0
        one.training_s += event.seconds
        since_s = max(started, at_s - event.seconds)  # claims are made ahead of the training
        self.working.setdefault(site, Spells()).add(since_s, at_s)

    def _published(self, entry: Entry, _: float) -> None:
        event, site = cast(events.DeltaPublished, entry.event), _site(entry)
        self._bytes[entry.record.sequence] = event.num_bytes
        one = self.tally(site)
        one.deltas += 1
        one.delta_bytes += event.num_bytes

    def _refused(self, entry: Entry, at_s: float) -> None:
        event = cast(events.DeltaRefused, entry.event)
        self.tally(event.site).refused += 1
        self._bytes.pop(event.delta[0], None)
        self._refusal("delta", event.site, event.code, event.reason, at_s)

    def _turned_away(self, entry: Entry, at_s: float) -> None:
        event = cast(events.SiteRefused, entry.event)
        self._refusal("join", event.site, event.code, event.reason, at_s)

    def _refusal(self, what: str, site: str, code: str, reason: str, at_s: float) -> None:
        told = {"what": what, "site": site, "code": code, "reason": reason, "at_s": at_s}
        self.refusals = [*self.refusals[1 - MAX_REFUSALS :], told]

    def _snapshot(self, entry: Entry, at_s: float) -> None:
        event = cast(events.SnapshotSaved, entry.event)
        told = {"version": event.version, "bytes": event.num_bytes, "at_s": at_s}
        self.snapshots.append(told)

    def _evaluated(self, entry: Entry, at_s: float) -> None:
        event = cast(events.EvaluationCompleted, entry.event)
        told = event.model_dump(include={"version", "loss", "perplexity", "bits_per_byte"})
        self.evaluations.append({**told, "at_s": at_s})

    def _elected(self, entry: Entry, at_s: float) -> None:
        event = cast(events.CoordinatorElected, entry.event)
        told = {"term": entry.record.sequence, "holder": event.holder, "reason": event.reason}
        self.terms.append({**told, "at_s": at_s})

    def _paused(self, entry: Entry, at_s: float) -> None:
        reason = cast(events.RunPaused, entry.event).reason
        self.pauses.append({"from_s": at_s, "until_s": None, "reason": reason})

    def _resumed(self, _: Entry, at_s: float) -> None:
        if self.pauses:
            self.pauses[-1]["until_s"] = at_s

    def _finished(self, entry: Entry, at_s: float) -> None:
        self.finished, self.finished_s = cast(events.RunFinished, entry.event), at_s

    def _placed(self, entry: Entry, at_s: float) -> None:
        assert entry.event is not None
        told = {"type": entry.event.type, "from": entry.record.subject, "at_s": at_s}
        self.placement.append({**told, **entry.event.model_dump(mode="json", exclude_none=True)})


def _site(entry: Entry) -> str:
    return entry.record.subject.partition(".")[2]


_NOTES: dict[str, Callable[[Chronicle, Entry, float], None]] = {
    "run.created": Chronicle._created,
    "run.paused": Chronicle._paused,
    "run.resumed": Chronicle._resumed,
    "run.finished": Chronicle._finished,
    "coordinator.elected": Chronicle._elected,
    "site.admitted": Chronicle._admitted,
    "site.refused": Chronicle._turned_away,
    "site.departed": Chronicle._departed,
    "round.opened": Chronicle._opened,
    "round.closed": Chronicle._closed,
    "round.committed": Chronicle._committed,
    "block.started": Chronicle._block_started,
    "block.completed": Chronicle._block_completed,
    "delta.published": Chronicle._published,
    "delta.refused": Chronicle._refused,
    "snapshot.saved": Chronicle._snapshot,
    "evaluation.completed": Chronicle._evaluated,
    "placement.probed": Chronicle._placed,
    "placement.planned": Chronicle._placed,
    "job.intended": Chronicle._placed,
    "job.submitted": Chronicle._placed,
    "job.ended": Chronicle._placed,
}
