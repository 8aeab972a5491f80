"""A second ledger, in memory: who holds which block of a simulated run.

It shares no code with the lease table or the audit, and takes of them only which events stand. An
event that stands though it must not, by this ledger, is a violation: so a rule that is missing in
the fold is seen, though everybody folds alike. Every check costs what its event touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from eventlog.config import RunConfig
from eventlog.events import DataShape, LeaseGranted, LeaseReclaimed, LeaseStolen, Token

LEASED, TRAINING, TRAINED, DELIVERED = range(4)
Key = tuple[int, int]  # epoch, block
Fault = Callable[[str, str, str], None]  # promise, rule, what


@dataclass(slots=True)
class Held:
    """A block that is on its way to a merge."""

    incarnation: int
    lease: Token
    phase: int = LEASED


@dataclass(slots=True)
class Holdings:
    """Of one run. `fault` is told what must not be."""

    config: RunConfig
    shape: DataShape
    fault: Fault
    held: dict[Key, Held] = field(default_factory=dict)
    merged: set[Key] = field(default_factory=set)
    quarantined: set[Key] = field(default_factory=set)
    members: set[int] = field(default_factory=set)  # incarnations with a quota in the open round
    merged_tokens: int = 0
    outstanding_tokens: int = 0
    started: set[tuple[int, int, int]] = field(default_factory=set)  # (incarnation, epoch, block)
    freed: set[Key] = field(default_factory=set)  # by the append that is being judged
    counts: Counter[str] = field(default_factory=Counter)
    num_blocks: int = field(init=False)  # of an epoch
    _taken: Counter[int] = field(default_factory=Counter)  # blocks of an epoch, not available
    _suspects: dict[Key, list[str]] = field(default_factory=dict)  # who was refused with it

    def __post_init__(self) -> None:
        self.num_blocks = -(-self.shape.num_sequences // self.shape.block_sequences)

    def tokens(self, block: int) -> int:
        """Of a block, by the manifest (P5)."""
        first = block * self.shape.block_sequences
        last = min(first + self.shape.block_sequences, self.shape.num_sequences)
        return (last - first) * self.shape.sequence_tokens

    def grant(self, event: LeaseGranted, token: Token, state: str, in_part: bool) -> None:
        """R2, R15: available blocks, of the first epoch that has any, within the target."""
        if state != "running":
            self.fault("P1", "R2", f"blocks are granted while the run is {state}")
        epoch = event.epoch
        if epoch and self._taken[epoch - 1] < self.num_blocks:
            self.fault("P1", "R15", f"epoch {epoch - 1} still has blocks, {epoch} is granted")
        for block in event.blocks:
            key = (epoch, block)
            if not self.is_free(key):
                if not in_part:
                    self.fault("P1", "R2", f"block {epoch}:{block} is granted, and was not free")
                continue
            if key in self.freed:
                self.fault("P1", "R2", f"block {epoch}:{block} is freed and granted in one append")
            suspects = self._suspects.get(key, [])
            if len(suspects) >= self.config.limits.quarantine and len(set(suspects)) > 1:
                self.fault("P8", "R14", f"block {epoch}:{block} was refused {len(suspects)} times")
            self.held[key] = Held(event.incarnation[0], token)
            self._taken[epoch] += 1
            self.outstanding_tokens += self.tokens(block)
            self.counts["granted"] += 1
        if event.quota is not None:
            self.members.add(event.incarnation[0])
        self._within_target(epoch)

    def _within_target(self, epoch: int) -> None:
        target, block = self.config.target, self.shape.block_sequences * self.shape.sequence_tokens
        if target.epochs is not None and epoch >= target.epochs:
            self.fault("P1", "R15", f"epoch {epoch} is granted, the run has {target.epochs}")
        if target.tokens is not None:
            planned = self.merged_tokens + self.outstanding_tokens
            if planned >= target.tokens + block:
                self.fault("P1", "R15", f"{planned} tokens are planned, wanted {target.tokens}")

    def steal(self, event: LeaseStolen, in_part: bool) -> None:
        """R2: unstarted blocks of the one that is named."""
        for block in event.blocks:
            key = (event.epoch, block)
            one = self.held.get(key)
            if one and one.phase == LEASED and one.incarnation == event.incarnation[0]:
                self._free(key, "stolen")
            elif not in_part:
                self.fault("P1", "R2", f"block {key} is stolen, and no unstarted one of it")

    def reclaim(self, event: LeaseReclaimed, in_part: bool) -> None:
        """R4: unstarted ones, or all that is not delivered."""
        mine = self.of(event.incarnation[0])
        whole = mine.keys() <= set(event.blocks)
        for key in sorted(set(event.blocks)):
            phase = mine.get(key)
            if phase is not None and (whole or phase == LEASED):
                self._free(key, "reclaimed", phase)
            elif not in_part:
                self.fault("P4", "R4", f"block {key} is reclaimed, begun and not with all others")

    def start(self, key: Key, lease: Token, incarnation: int) -> None:
        if self._own(key, lease, incarnation, LEASED, "started"):
            self.held[key].phase = TRAINING
            self.started.add((incarnation, *key))

    def complete(self, key: Key, lease: Token, incarnation: int) -> None:
        if self._own(key, lease, incarnation, TRAINING, "completed"):
            self.held[key].phase = TRAINED

    def _own(self, key: Key, lease: Token, incarnation: int, phase: int, what: str) -> bool:
        one = self.held.get(key)
        if one == Held(incarnation, lease, phase):
            return True
        self.fault("P4", "R3", f"{what} {key} by incarnation {incarnation} under lease {lease[0]}"
                   f" stands; the block is {one or 'not held'}")  # fmt: skip
        return False

    def depart(self, incarnation: int) -> tuple[int, int]:
        """R4: all that it had not delivered goes back; how much of it unstarted, and started."""
        mine = self.of(incarnation)
        for key, phase in mine.items():
            self._free(key, "reclaimed", phase)
        unstarted = sum(phase == LEASED for phase in mine.values())
        return unstarted, len(mine) - unstarted

    def finish(self) -> None:
        """R15: the run's end returns what is not delivered."""
        for key in [key for key, one in self.held.items() if one.phase < DELIVERED]:
            self._free(key, "reclaimed", self.held[key].phase)

    def is_free(self, key: Key) -> bool:
        """Whether it is a block of an epoch, and available."""
        taken = key in self.held or key in self.merged or key in self.quarantined
        return key[1] < self.num_blocks and not taken

    def quarantine(self, key: Key) -> None:
        if not self.is_free(key):
            self.fault("P1", "R14", f"block {key} is set aside, and was not free")
        if len(self._suspects.get(key, ())) < self.config.limits.quarantine:
            self.fault("P1", "R14", f"block {key} is set aside without so many refusals")
        self.quarantined.add(key)
        self._taken[key[0]] += 1

    def close_epoch(self, epoch: int, num_blocks: int) -> None:
        """R15: every block of it is merged or set aside."""
        whole = sum(key[0] == epoch for key in (*self.merged, *self.quarantined))
        if whole != self.num_blocks or num_blocks != self.num_blocks:
            self.fault("P1", "R15", f"epoch {epoch} is closed with {whole} blocks done")

    def of(self, incarnation: int) -> dict[Key, int]:
        """What an incarnation holds undelivered, and how far it is."""
        return {
            key: one.phase
            for key, one in self.held.items()
            if one.incarnation == incarnation and one.phase < DELIVERED
        }

    def _free(self, key: Key, why: str, phase: int = LEASED) -> None:
        del self.held[key]
        self.freed.add(key)
        self._taken[key[0]] -= 1
        self.outstanding_tokens -= self.tokens(key[1])
        self.counts[why] += 1
        if why == "reclaimed":
            self.counts["reclaimed unstarted" if phase == LEASED else "reclaimed started"] += 1
