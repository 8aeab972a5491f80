"""A run's numbers under the names that people know: events in, (name, value, step, time) out. Pure.

The step of everything is the version of the model it belongs to, so that curves of a run, of its
fork and of another run lie over each other; `train/tokens` says how many tokens that is. A fork's
steps and tokens go on where its parent stood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eventlog.codec import Entry
from eventlog.config import RunConfig
from eventlog.events import (
    BlockCompleted,
    DeltaPublished,
    DeltaRefused,
    EvaluationCompleted,
    Heartbeat,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    RunCreated,
    RunFinished,
    SiteAdmitted,
    SiteDeparted,
    VersionApplied,
)
from leases.blocks import BlockIndex
from leases.states import is_void


class Metric(NamedTuple):
    """One point of one curve. `time_s`: Unix seconds, by the broker's clock."""

    name: str
    value: float
    step: int
    time_s: float


Named = tuple[str, float]
_OF_A_VERSION = (EvaluationCompleted, RoundCommitted, VersionApplied)


@dataclass(slots=True)
class Metrics:
    """Fed with every event and the fold's word on it, in order. `skipped`: numbers that were none,
    and are left out."""

    skipped: int = 0
    _index: BlockIndex | None = None
    _version: int = 0
    _base: int = 0  # the version of the parent that a fork began with
    _tokens: int = 0
    _rates: dict[str, float] = field(default_factory=dict)  # of live sites
    _losses: list[tuple[float, int]] = field(default_factory=list)  # since the last version
    _opened_s: float | None = None
    _norms: list[float] = field(default_factory=list)
    _cut: RoundClosed | None = None
    _leases: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("granted", "reclaimed", "stolen", "refused"), 0)
    )

    def see(self, entry: Entry, void: str) -> list[Metric]:
        """What an event adds."""
        if entry.envelope is None or entry.event is None or is_void(void):
            return []
        site = entry.envelope.source.partition(".")[2]
        found, time_s = [], entry.record.time_ns / 1e9
        step = self._base + self._version
        for name, value in self._named(entry, site, time_s):
            at = step
            if isinstance(entry.event, _OF_A_VERSION):
                at = self._base + entry.event.version
            if math.isfinite(value):
                found.append(Metric(name, value, at, time_s))
            else:
                self.skipped += 1
        return found

    def _named(self, entry: Entry, site: str, time_s: float) -> Iterator[Named]:
        event = entry.event
        match event:
            case RunCreated():
                self._index = BlockIndex(RunConfig.recorded(event.config).seed, event.data)
                if event.lineage is not None:
                    self._base, self._tokens = event.lineage.version, event.lineage.tokens
            case SiteAdmitted():
                self._rates[event.site] = 0.0
                yield "site/live", len(self._rates)
            case SiteDeparted():
                self._rates.pop(event.site, None)
                yield "site/live", len(self._rates)
            case Heartbeat():
                self._rates[site] = event.tokens_per_s
            case BlockCompleted() if self._index is not None:
                tokens = self._index.tokens(event.block)
                self._losses.append((event.loss, tokens))
                if event.seconds > 0:
                    self._rates[site] = tokens / event.seconds
            case RoundOpened():
                self._opened_s = time_s
            case DeltaPublished():
                self._norms.append(event.norm)
                yield f"outer/delta_bytes/{site}", event.num_bytes
            case RoundClosed():
                self._cut = event
            case RoundCommitted():
                yield from self._committed(event, time_s)
            case VersionApplied() if event.seconds:
                yield f"outer/stall_seconds/{site}", event.stall_s
            case EvaluationCompleted():
                yield "val/loss", event.loss
                yield "val/perplexity", event.perplexity
                yield "val/bits_per_byte", event.bits_per_byte
            case RunFinished():
                yield "train/finished", 1.0
            case LeaseGranted() | LeaseStolen() | LeaseReclaimed():
                self._leases[event.type.partition(".")[2]] += len(event.blocks)
            case DeltaRefused():
                self._leases["refused"] += 1

    def _committed(self, event: RoundCommitted, time_s: float) -> Iterator[Named]:
        self._version = event.version
        self._tokens += event.tokens
        tokens = sum(count for _, count in self._losses)
        if tokens:
            yield "train/loss", sum(loss * count for loss, count in self._losses) / tokens
        yield "train/tokens", self._tokens
        yield "train/tokens_per_second", sum(self._rates.values())
        for site, rate in sorted(self._rates.items()):
            yield f"train/tokens_per_second/{site}", rate
        yield "outer/update_bytes", event.update_bytes
        yield "outer/merge_seconds", sum(event.seconds.values())
        if self._opened_s is not None:
            yield "outer/round_seconds", time_s - self._opened_s
        if self._cut is not None:
            yield "outer/deltas", len(self._cut.deltas)
        if self._norms:
            yield "outer/delta_norm", sum(self._norms) / len(self._norms)
        for name, value in self._leases.items():
            yield f"lease/{name}", value
        self._losses, self._norms = [], []
