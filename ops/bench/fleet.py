"""Any number of sites that train at a steady pace, leave and come back, in virtual time.

They write what real hubs write, block by block; nothing is trained, and the log is in memory. The
decisions are the coordinator's own: `Desk` folds with the real fold and asks the real rules.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from eventlog.codec import Entry
from eventlog.events import (
    OPERATOR,
    BlockCompleted,
    BlockStarted,
    CoordinatorElected,
    CoordinatorTick,
    DeltaBlock,
    DeltaPublished,
    Event,
    Heartbeat,
    LeaseGranted,
    LeaseStolen,
    RoundCommitted,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    Token,
)
from eventlog.writer import Stamp, Writer
from ops.bench.desk import (
    BLOCK_SEQUENCES,
    SEQUENCE_TOKENS,
    Desk,
    at_once,
    digest_of,
    founding,
    holding,
    joining,
)
from outer.facts import Verdict

BLOCK_S, BLOCKS_A_ROUND = 3.0, 4  # of the fastest sites; the slowest take twice as long
BEAT_S = 2.0  # of silence, then a heartbeat; the same for any number of sites, to compare them
LEAVES, DIES, AWAY_S = 0.02, 0.0005, 20.0  # a site, at each block it ends; how long it is away


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
        at_once(
            operator.append([founding(max(1, round(0.8 * num_sites)), BLOCKS_A_ROUND)], Stamp())
        )
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
            self.desk.verdicts[sequence] = Verdict(norm=event.norm)  # as of a blob that was read
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
