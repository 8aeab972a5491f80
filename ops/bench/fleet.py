"""Any number of sites that train at a steady pace, leave and come back, in virtual time.

They write what real hubs write, block by block; nothing is trained, and the log is in memory. The
decisions are the coordinator's own: `Desk` folds with the real fold and asks the real rules.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eventlog.chain import Record
from eventlog.codec import Entry, pack
from eventlog.config import RunConfig
from eventlog.events import (
    COORDINATOR,
    OPERATOR,
    BlockCompleted,
    BlockStarted,
    CoordinatorElected,
    CoordinatorTick,
    DataShape,
    DeltaBlock,
    DeltaPublished,
    Event,
    Heartbeat,
    LeaseGranted,
    LeaseStolen,
    RoundCommitted,
    RunCreated,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteJoined,
    Token,
    VersionApplied,
)
from eventlog.log import EventLog
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View
from outer.facts import Facts, Verdict
from outer.rounds import decide

RUN, SEQUENCE_TOKENS, BLOCK_SEQUENCES, NUM_BLOCKS = "bench", 8, 4, 1 << 20
ARITHMETIC = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("decode", "step")}
MANIFEST = hashlib.sha256(b"manifest").hexdigest()
BLOCK_S, BLOCKS_A_ROUND = 3.0, 4  # of the fastest sites; the slowest take twice as long
BEAT_S = 2.0  # of silence, then a heartbeat; the same for any number of sites, to compare them
LEAVES, DIES, AWAY_S = 0.02, 0.0005, 20.0  # a site, at each block it ends; how long it is away
T = TypeVar("T")


def digest_of(text: str) -> str:
    """A digest that stands for some content."""
    return hashlib.sha256(text.encode()).hexdigest()


def founding(quorum: int, blocks_per_round: int = BLOCKS_A_ROUND) -> RunCreated:
    """The first event of a run of many rounds, which close 5 s after a quorum."""
    config = RunConfig.model_validate(
        {
            "name": RUN,
            "target": {"rounds": 1_000_000},
            "data": {"block_sequences": BLOCK_SEQUENCES},
            "inner": {"steps": blocks_per_round, "batch_sequences": BLOCK_SEQUENCES},
            "model": {"model_type": "none"},
            "rounds": {"quorum": quorum, "grace_s": 5.0},
        }
    )
    content = config.model_dump(mode="json", exclude_none=True)
    return RunCreated(
        config=content,
        config_digest=hashlib.sha256(pack(content)).hexdigest(),
        data=DataShape(
            manifest_digest=MANIFEST,
            num_sequences=NUM_BLOCKS * BLOCK_SEQUENCES,
            sequence_tokens=SEQUENCE_TOKENS,
            block_sequences=BLOCK_SEQUENCES,
        ),
        parameters_blob=digest_of("initial blob"),
        parameters_digest=digest_of("version 0"),
        num_parameters=1,
        arithmetic=ARITHMETIC,
        arithmetic_digest=digest_of("arithmetic"),
    )


def joining() -> SiteJoined:
    """A site that fits the run."""
    return SiteJoined(hardware={}, software={}, manifest_digest=MANIFEST, arithmetic=ARITHMETIC)


def holding(version: int) -> VersionApplied:
    """A site holds the version, whole."""
    digest = digest_of(f"version {version}")
    return VersionApplied(version=version, parameters_digest=digest, source="update")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a log in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a log in memory waits for nothing")


@dataclass(slots=True)
class Desk:
    """The coordinator without its broker: folds an event, decides, folds what it decided, until
    nothing is left. Counts its own processor time, and not that of the log."""

    log: EventLog = field(default_factory=lambda: MemoryLog(RUN))
    projection: Projection = field(
        default_factory=lambda: Projection(":memory:", [LeaseTable()], RUN)
    )
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    merged: RoundCommitted | None = None
    seconds: float = 0.0
    num_turns: int = 0
    num_decided: int = 0
    deciding_s: float = 0.0  # of `seconds`, those of turns that decided something
    view: View = field(init=False)
    _pen: Writer = field(init=False)
    _none: set[int] = field(default_factory=set)  # no verdict refuses anything

    def __post_init__(self) -> None:
        self.view = View(self.projection.db)
        self._pen = Writer(self.log, COORDINATOR, chained=True)

    def turn(self) -> list[Entry]:
        """Fold what is new and decide; all that was folded."""
        self.num_turns += 1
        seconds, num_decided = self.seconds, self.num_decided
        folded = self._fold()
        while True:
            began = time.thread_time()
            events = decide(self.view, Facts(self.verdicts, self.merged, (), None, self._none))
            self.seconds += time.thread_time() - began
            if not events:
                if self.num_decided > num_decided:
                    self.deciding_s += self.seconds - seconds
                return folded
            self.num_decided += len(events)
            folded += self.append(events)

    def append(self, events: list[Event]) -> list[Entry]:
        """Append as the coordinator, and fold."""
        began = time.thread_time()
        stamp = Stamp(term=self.view.run().term or None)
        at_once(self._pen.append(events, stamp))
        self.seconds += time.thread_time() - began
        return self._fold()

    def _fold(self) -> list[Entry]:
        position = self.projection.position.sequence
        records: list[Record] = at_once(self.log.read(position, limit=100_000))
        began = time.thread_time()
        folded = []
        for entry, voids in self.projection.apply(records):
            assert not voids[0], voids[0]
            folded.append(entry)
        self._pen.set(*self.view.pen(COORDINATOR))
        self.seconds += time.thread_time() - began
        return folded


@dataclass(slots=True)
class Site:
    """`leased`: granted and not begun, as (epoch, block, lease). `life`: of its timers."""

    name: str
    block_s: float
    pen: Writer
    token: Token | None = None
    leased: list[tuple[int, int, Token]] = field(default_factory=list)
    trained: list[tuple[int, int, Token]] = field(default_factory=list)
    busy: bool = False
    delivered: bool = False
    spoke_at: float = 0.0
    step: int = 0
    life: int = 0


class Fleet:
    """So many sites and the desk that coordinates them. `run` lets virtual time pass."""

    def __init__(self, num_sites: int, seed: int = 0) -> None:
        self.desk = Desk()
        self._chance = random.Random(seed)
        self._timers: list[tuple[float, int, str, str, int]] = []
        self._num_timers = 0
        self.now = 0.0
        operator = Writer(self.desk.log, OPERATOR)
        at_once(operator.append([founding(max(1, round(0.8 * num_sites)))], Stamp()))
        self.desk.turn()
        self.desk.append([CoordinatorElected(holder="bench", reason="the run's first")])
        self.sites = {}
        for number in range(num_sites):
            name = f"site-{number:04d}"
            pace = BLOCK_S * self._chance.uniform(1, 2)
            self.sites[name] = Site(name, pace, Writer(self.desk.log, f"site.{name}"))
            self._after(self._chance.uniform(0, 2), "join", name)
        self._after(self.desk.view.timing().tick_s, "tick", "")

    def run(self, num_turns: int) -> None:
        """Go on until the desk has had so many turns more."""
        end = self.desk.num_turns + num_turns
        while self.desk.num_turns < end:
            self.now, _, what, name, life = heapq.heappop(self._timers)
            if what == "tick":
                self._tick()
            elif life == self.sites[name].life:
                getattr(self, f"_{what}")(self.sites[name])

    def settle(self, num_rounds: int) -> None:
        """Go on until so many rounds are committed."""
        while self.desk.view.run().version < num_rounds:
            self.run(1)

    # -- timers -----------------------------------------------------------------------------------

    def _after(self, seconds: float, what: str, name: str) -> None:
        life = self.sites[name].life if name else 0
        self._num_timers += 1
        heapq.heappush(self._timers, (self.now + seconds, self._num_timers, what, name, life))

    def _tick(self) -> None:
        number = self.desk.view.run().term_ticks + 1
        self._took(self.desk.append([CoordinatorTick(tick=number)]))
        self._took(self.desk.turn())
        self._after(self.desk.view.timing().tick_s, "tick", "")

    def _join(self, site: Site) -> None:
        self._says(site, joining())

    def _beat(self, site: Site) -> None:
        if self.now - site.spoke_at >= BEAT_S:
            site.step += 1
            phase = "training" if site.busy else "waiting"
            rate = BLOCK_SEQUENCES * SEQUENCE_TOKENS / site.block_s
            beat = {"phase": phase, "step": site.step, "tokens": 0, "tokens_per_s": rate}
            self._says(site, Heartbeat.model_validate(beat))
        self._after(BEAT_S, "beat", site.name)

    def _apply(self, site: Site) -> None:
        self._says(site, holding(self.desk.view.run().version))
        self._after(0.1, "next", site.name)

    def _next(self, site: Site) -> None:
        """Begin the next block, or deliver what is trained."""
        if site.busy:
            return
        if site.leased:
            site.busy = True
            epoch, block, lease = site.leased[0]
            self._says(site, BlockStarted(epoch=epoch, block=block, lease=lease))
            self._after(site.block_s, "end", site.name)
        elif site.trained and not site.delivered:
            site.delivered = True
            self._says(site, self._delta(site))

    def _end(self, site: Site) -> None:
        (epoch, block, lease), site.busy = site.leased.pop(0), False
        site.trained.append((epoch, block, lease))
        done = {"epoch": epoch, "block": block, "lease": lease, "loss": 2.0}
        self._says(site, BlockCompleted.model_validate({**done, "seconds": site.block_s}))
        drawn = self._chance.random()
        if drawn < DIES:
            self._away(site)
        elif drawn < LEAVES:
            self._says(site, SiteDeparting(code="walltime", reason="its job ends"))
        else:
            self._next(site)

    def _away(self, site: Site) -> None:
        """It says nothing more; another job comes in its place."""
        site.token, site.busy, site.delivered = None, False, False
        site.leased, site.trained, site.life = [], [], site.life + 1
        self._after(AWAY_S, "join", site.name)

    def _delta(self, site: Site) -> DeltaPublished:
        tokens = self.desk.view.index().block_tokens
        blocks = [
            DeltaBlock(epoch=epoch, block=block, lease=lease, tokens=tokens)
            for epoch, block, lease in site.trained
        ]
        site.trained = []
        fields = {"base_version": self.desk.view.run().version, "blocks": blocks, "codec": "bf16"}
        blob = digest_of(f"{site.name} {self.now}")
        more = {"blob": blob, "num_bytes": 1, "norm": 1.0, "max_abs": 1.0}
        return DeltaPublished.model_validate({**fields, **more})

    # -- the log ----------------------------------------------------------------------------------

    def _says(self, site: Site, event: Event) -> None:
        site.spoke_at = self.now
        sequence = at_once(site.pen.append([event], Stamp(incarnation=site.token)))
        if isinstance(event, DeltaPublished):
            self.desk.verdicts[sequence] = Verdict()
        self._took(self.desk.turn())

    def _took(self, folded: list[Entry]) -> None:
        """The sites read what was decided; a logged cut is merged at once."""
        for entry in folded:
            self._read(entry)
        round_ = self.desk.view.round()
        if round_ is None or round_.cut is None:
            return
        version = round_.base_version + 1
        self.desk.merged = RoundCommitted(
            round=round_.round,
            cut=round_.cut,
            version=version,
            update_blob=digest_of(f"update {version}"),
            update_bytes=1,
            update_codec="bf16",
            parameters_digest=digest_of(f"version {version}"),
            momentum_digest=digest_of(f"momentum {version}"),
            residual_digest=digest_of(f"residual {version}"),
            tokens=round_.tokens,
            through=self.desk.projection.position.sequence,
            log_digest=self.desk.projection.position.log_digest,
            reason="merged",
        )
        folded = self.desk.turn()
        self.desk.merged = None
        self.desk.verdicts.clear()
        self._took(folded)

    def _read(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, SiteAdmitted):
            site = self.sites[event.site]
            site.token = entry.token
            self._after(1.0, "apply", site.name)
            self._after(self._chance.uniform(0, BEAT_S), "beat", site.name)
        elif isinstance(event, LeaseGranted) and self._is_of(event.site, event.incarnation):
            leased = [(event.epoch, block, entry.token) for block in event.blocks]
            self.sites[event.site].leased += leased
            self._after(0.1, "next", event.site)
        elif isinstance(event, LeaseStolen) and self._is_of(event.site, event.incarnation):
            site, gone = self.sites[event.site], {(event.epoch, block) for block in event.blocks}
            site.leased = [one for one in site.leased if one[:2] not in gone]
            self._after(0.1, "next", event.site)
        elif isinstance(event, SiteDeparted) and self._is_of(event.site, event.incarnation):
            self._away(self.sites[event.site])
        elif isinstance(event, RoundCommitted):
            for site in self.sites.values():
                if site.token is not None:
                    site.delivered = self.desk.view.has_undecided(site.token[0])
                    self._after(self._chance.uniform(0.5, 5), "apply", site.name)

    def _is_of(self, name: str, incarnation: Token) -> bool:
        return self.sites[name].token == incarnation
