"""What the time of devices went into, by site: a reading of the log for people and reports.

A site's time is from each admission to the departure that follows, by the broker's clock, times the
devices that it said it has. What it is made of the site's own clock says: training of blocks that
were merged, training that was lost (refused, reclaimed, the site died), and standing still for the
exchange, for want of work, for evaluations. From an admission to the first version it starts up.
The rest is whatever nobody measured: sampling of data, waits for the log, a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from eventlog.codec import Entry
from eventlog.config import RunConfig
from eventlog.events import (
    BlockCompleted,
    DeltaPublished,
    DeltaRefused,
    LeaseReclaimed,
    RoundClosed,
    RoundCommitted,
    RunCreated,
    RunFinished,
    SiteAdmitted,
    SiteDeparted,
    SiteJoined,
    Token,
    VersionApplied,
)
from eventlog.phases import BLOCKED, EVALUATE, IDLE
from leases.blocks import BlockIndex
from leases.peaks import flops_per_token, peak_of
from leases.states import is_void

Key = tuple[int, int]  # epoch, block
LOSSES = ("lost_work", "blocked", "idle", "evaluate", "starting", "rest")  # of wall time


@dataclass(slots=True)
class Work:
    """Blocks that were trained: their tokens, and the seconds that it took."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, other: Work) -> None:
        self.tokens += other.tokens
        self.seconds += other.seconds


@dataclass(slots=True)
class Life:
    """An incarnation: since when, on what, and what it has trained and not delivered."""

    site: str
    hardware: dict[str, str]
    since_s: float
    started: bool = False
    held: dict[Key, Work] = field(default_factory=dict)


@dataclass(slots=True)
class SiteGoodput:
    """Sums over a site's incarnations; seconds by its devices' clock, `wall_s` by the broker's."""

    site: str
    device: str = ""
    num_devices: int = 1
    wall_s: float = 0.0
    device_s: float = 0.0
    merged: Work = field(default_factory=Work)
    lost: Work = field(default_factory=Work)
    undecided: Work = field(default_factory=Work)
    blocked_s: float = 0.0
    idle_s: float = 0.0
    evaluate_s: float = 0.0
    starting_s: float = 0.0

    def as_json(self, token_flops: float) -> dict[str, Any]:
        """The documented object (docs/steering.md)."""
        peak = peak_of(self.device)
        lost = {
            "lost_work": self.lost.seconds,
            "blocked": self.blocked_s,
            "idle": self.idle_s,
            "evaluate": self.evaluate_s,
            "starting": self.starting_s,
        }
        known = self.merged.seconds + self.undecided.seconds + sum(lost.values())
        lost["rest"] = max(0.0, self.wall_s - known)
        return {
            "site": self.site,
            "device": self.device,
            "num_devices": self.num_devices,
            "wall_s": self.wall_s,
            "device_hours": self.device_s / 3600,
            "tokens": self.merged.tokens,
            "tokens_lost": self.lost.tokens,
            "tokens_undecided": self.undecided.tokens,
            "tokens_per_s": _over(self.merged.tokens, self.wall_s),
            "training_tokens_per_s": _over(self.merged.tokens, self.merged.seconds),
            "training_share": _over(self.merged.seconds, self.wall_s),
            "lost_share": {name: _over(seconds, self.wall_s) for name, seconds in lost.items()},
            "mfu": peak and _over(self.merged.tokens * token_flops, self.device_s * peak),
        }


@dataclass(slots=True)
class Goodput:
    """Fed with every event and the fold's word on it, in order."""

    sites: dict[str, SiteGoodput] = field(default_factory=dict)
    token_flops: float = 0.0
    _index: BlockIndex | None = None
    _hardware: dict[Token, dict[str, str]] = field(default_factory=dict)  # of joins
    _lives: dict[Token, Life] = field(default_factory=dict)
    _deltas: dict[Token, tuple[str, Work]] = field(default_factory=dict)
    _cuts: dict[Token, list[Token]] = field(default_factory=dict)
    _began_s: float | None = None
    _last_s: float = 0.0

    def see(self, entry: Entry, void: str) -> None:
        """Take in one event."""
        event, envelope = entry.event, entry.envelope
        if envelope is None or event is None or is_void(void):
            return
        self._last_s = entry.record.time_ns / 1e9
        life = self._lives.get(envelope.incarnation) if envelope.incarnation else None
        match event:
            case RunCreated():
                self._found(event)
            case SiteJoined():
                self._hardware[entry.token] = event.hardware
            case SiteAdmitted():
                self._admit(entry.token, event)
            case SiteDeparted():
                self._depart(event.incarnation)
            case RunFinished():
                for token in list(self._lives):
                    self._depart(token)
            case LeaseReclaimed():
                self._reclaim(event)
            case DeltaRefused() if event.delta in self._deltas:
                site, work = self._deltas.pop(event.delta)
                self.sites[site].lost.add(work)
            case RoundClosed():
                self._cuts[entry.token] = [cut.delta for cut in event.deltas]
            case RoundCommitted():
                for token in self._cuts.pop(event.cut, []):
                    if token in self._deltas:
                        site, work = self._deltas.pop(token)
                        self.sites[site].merged.add(work)
            case BlockCompleted() if life is not None and self._index is not None:
                tokens = self._index.tokens(event.block)
                life.held[event.epoch, event.block] = Work(tokens, event.seconds)
            case DeltaPublished() if life is not None:
                self._deltas[entry.token] = (life.site, _delivered(life, event))
            case VersionApplied() if life is not None:
                self._apply(life, event)

    def as_json(self) -> dict[str, Any]:
        """The documented object: of the whole run, and by site; lives that go on count until the
        last event."""
        now = _until_now(self)
        sites = [one.as_json(self.token_flops) for _, one in sorted(now.items())]
        span_s = max(0.0, self._last_s - self._began_s) if self._began_s is not None else 0.0
        wall_s = sum(one.wall_s for one in now.values())
        merged = sum(one.merged.tokens for one in now.values())
        shares = {
            name: _over(sum(one["lost_share"][name] * one["wall_s"] for one in sites), wall_s)
            for name in LOSSES
        }
        return {
            "span_s": span_s,
            "device_hours": sum(one["device_hours"] for one in sites),
            "tokens": merged,
            "tokens_lost": sum(one["tokens_lost"] for one in sites),
            "tokens_per_s": _over(merged, span_s),
            "training_share": _over(sum(one.merged.seconds for one in now.values()), wall_s),
            "lost_share": shares,
            "mfu": _mfu(now.values(), self.token_flops),
            "flops_per_token": self.token_flops,
            "sites": sites,
        }

    def _found(self, event: RunCreated) -> None:
        config = RunConfig.recorded(event.config)
        self._index = BlockIndex(config.seed, event.data)
        self.token_flops = flops_per_token(
            event.num_parameters, config.model, event.data.sequence_tokens
        )

    def _admit(self, token: Token, event: SiteAdmitted) -> None:
        hardware = self._hardware.pop(event.join, {})
        self._began_s = self._last_s if self._began_s is None else self._began_s
        self._lives[token] = Life(event.site, hardware, self._last_s)
        site = self.sites.setdefault(event.site, SiteGoodput(event.site))
        site.device = hardware.get("accelerator") or hardware.get("processor", "")
        site.num_devices = _num_devices(hardware)

    def _depart(self, token: Token) -> None:
        life = self._lives.pop(token, None)
        if life is None:
            return
        site = self.sites[life.site]
        _count(site, life, self._last_s)
        for work in life.held.values():
            site.lost.add(work)

    def _reclaim(self, event: LeaseReclaimed) -> None:
        life = self._lives.get(event.incarnation)
        if life is not None:
            for key in event.blocks:
                self.sites[life.site].lost.add(life.held.pop(key, Work()))

    def _apply(self, life: Life, event: VersionApplied) -> None:
        site = self.sites[life.site]
        if not life.started:
            life.started = True
            site.starting_s += max(0.0, self._last_s - life.since_s)
            return  # what it stood still for until then is its start
        site.blocked_s += event.seconds.get(BLOCKED, 0.0)
        site.idle_s += event.seconds.get(IDLE, 0.0)
        site.evaluate_s += event.seconds.get(EVALUATE, 0.0)


def table(entries: Iterable[tuple[Entry, str]]) -> Goodput:
    """The goodput of a log, given each event with the fold's word on it, in the log's order."""
    found = Goodput()
    for entry, void in entries:
        found.see(entry, void)
    return found


def _until_now(whole: Goodput) -> dict[str, SiteGoodput]:
    """The sites with what is under way: a copy."""
    sites = deepcopy(whole.sites)
    for life in whole._lives.values():
        _count(sites[life.site], life, whole._last_s)
        for work in life.held.values():
            sites[life.site].undecided.add(work)
    for site, work in whole._deltas.values():
        sites[site].undecided.add(work)
    return sites


def _count(site: SiteGoodput, life: Life, until_s: float) -> None:
    wall_s = max(0.0, until_s - life.since_s)
    site.wall_s += wall_s
    site.device_s += wall_s * _num_devices(life.hardware)
    if not life.started:
        site.starting_s += wall_s


def _delivered(life: Life, event: DeltaPublished) -> Work:
    whole = Work()
    for block in event.blocks:
        whole.add(life.held.pop((block.epoch, block.block), Work(block.tokens)))
    return whole


def _num_devices(hardware: dict[str, str]) -> int:
    """One for each rank of the trainer ("4 (fsdp)")."""
    said = hardware.get("ranks", "1").partition(" ")[0]
    return max(1, int(said)) if said.isdecimal() and len(said) < 7 else 1


def _mfu(sites: Iterable[SiteGoodput], token_flops: float) -> float | None:
    """Over all sites, where every one's device is known."""
    used = able = 0.0
    for one in sites:
        peak = peak_of(one.device)
        if peak is None:
            return None
        used += one.merged.tokens * token_flops
        able += one.device_s * peak
    return _over(used, able)


def _over(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
