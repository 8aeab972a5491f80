"""A second ledger, in memory: who holds which block, what is delivered, cut, merged and kept.

It shares no code with the lease table or the audit, and takes of them only which events stand. An
event that stands though it must not, by this ledger, is a violation: so a rule that is missing in
the fold is seen, though everybody folds alike. Every check costs what its event touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from eventlog.config import RunConfig
from eventlog.events import (
    BlobsReleased,
    DataShape,
    DeltaPublished,
    DeltaRefused,
    LeaseGranted,
    LeaseReclaimed,
    LeaseStolen,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    SnapshotSaved,
    Token,
)

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
class Delta:
    """A published delta. `void`: it stands for nothing, and a refusal is owed."""

    incarnation: int
    site: str
    event: DeltaPublished
    ticks: int
    void: bool
    tokens: int


@dataclass(slots=True)
class Round:
    """The round that is under way."""

    event: RoundOpened
    ticks: int
    members: set[int]
    cut: list[int] | None = None


@dataclass(slots=True)
class Ledger:
    """Of one run. `fault` is told what must not be."""

    config: RunConfig
    shape: DataShape
    fault: Fault
    held: dict[Key, Held] = field(default_factory=dict)
    merged: set[Key] = field(default_factory=set)
    quarantined: set[Key] = field(default_factory=set)
    deltas: dict[int, Delta] = field(default_factory=dict)
    round: Round | None = None
    version: int = 0
    merged_tokens: int = 0
    outstanding_tokens: int = 0
    started: set[tuple[int, int, int]] = field(default_factory=set)  # (incarnation, epoch, block)
    freed: set[Key] = field(default_factory=set)  # by the append that is being judged
    counts: Counter[str] = field(default_factory=Counter)
    updates: dict[int, RoundCommitted] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
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

    # -- leases -----------------------------------------------------------------------------------

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
        if self.round is not None and event.quota is not None:
            self.round.members.add(event.incarnation[0])
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

    # -- deltas -----------------------------------------------------------------------------------

    def publish(self, seq: int, site: str, incarnation: int, event: DeltaPublished, ticks: int,
                void: bool) -> None:  # fmt: skip
        """R1, R3, R12: whole blocks, trained by the writer under these leases; one undecided."""
        keys = [(one.epoch, one.block) for one in event.blocks]
        tokens = sum(self.tokens(one.block) for one in event.blocks if one.block < self.num_blocks)
        self.deltas[seq] = Delta(incarnation, site, event, ticks, void, tokens)
        if void:
            return
        if len(set(keys)) < len(keys):
            self.fault("P1", "R12", "a delta names a block twice")
        others = self.undecided(incarnation)
        if len(others) > 1 and not event.last:
            self.fault("P1", "R12", f"{len(others)} deltas of incarnation {incarnation} undecided")
        for one, key in zip(event.blocks, keys, strict=True):
            if self._own(key, one.lease, incarnation, TRAINED, "delivered"):
                self.held[key].phase = DELIVERED
            if one.tokens != self.tokens(one.block):
                self.fault("P5", "R12", f"a delta claims {one.tokens} tokens of block {key}")

    def undecided(self, incarnation: int | None = None) -> list[Delta]:
        """Deltas that count and are not decided."""
        return [
            one
            for one in self.deltas.values()
            if not one.void and incarnation in (None, one.incarnation)
        ]

    def refuse(self, event: DeltaRefused) -> int | None:
        """Its blocks go back; the incarnation, where the refusal is for the delta's values."""
        one = self.deltas.pop(event.delta[0], None)
        if one is None:
            self.fault("P8", "R4", f"delta {event.delta[0]} is refused, and was decided before")
            return None
        keys = [(part.epoch, part.block) for part in one.event.blocks]
        leases = {(part.epoch, part.block): part.lease for part in one.event.blocks}
        for key in sorted(set(keys)):
            held = self.held.get(key)
            if held is None or held.incarnation != one.incarnation:
                continue
            if one.void and held.phase == TRAINED and held.lease[0] < event.delta[0]:
                self._free(key, "reclaimed", TRAINED)
            elif not one.void and held == Held(one.incarnation, leases[key], DELIVERED):
                self._free(key, "refused")
                if event.values:
                    self._suspects.setdefault(key, []).append(one.site)
        if self.round is not None and self.round.cut and event.delta[0] in self.round.cut:
            self.round.cut = None
        return one.incarnation if event.values else None

    # -- rounds -----------------------------------------------------------------------------------

    def open(self, event: RoundOpened, ticks: int, state: str) -> None:
        if self.round is not None or state != "running" or event.base_version != self.version:
            self.fault("P1", "R13", f"round {event.round} opens in a run that is {state}")
        self.round = Round(event, ticks, {quota.incarnation[0] for quota in event.quotas})

    def cut(self, event: RoundClosed, missing: Iterable[str], ticks: int, live: int) -> None:
        """P4, P5, R13: undecided fresh deltas, weighted by their tokens, and not before time."""
        if self.round is None:
            return self.fault("P1", "R13", "a round is cut that is not open")
        total = sum(self.deltas[one.delta[0]].tokens for one in event.deltas
                    if one.delta[0] in self.deltas)  # fmt: skip
        for one in event.deltas:
            delta = self.deltas.get(one.delta[0])
            if delta is None or delta.void:
                self.fault("P4", "R3", f"delta {one.delta[0]} is cut, and is void or decided")
                continue
            if one.tokens != delta.tokens or one.weight != delta.tokens / total:
                self.fault("P5", "R12", f"delta {one.delta[0]} weighs {one.weight}")
            if self.version - delta.event.base_version > self.config.outer.max_staleness:
                self.fault("P1", "R13", f"delta {one.delta[0]} is cut, and is stale")
        late = sorted(missing)
        if late and self.due(live) > ticks:
            self.fault("P2", "R13", f"round {event.round} is cut before time, without {late}")
        self.round.cut = [one.delta[0] for one in event.deltas]

    def due(self, live: int) -> float:
        """The tick at which the open round is to be cut, whoever is missing (R13)."""
        deltas = self.undecided()
        if self.round is None or self.round.cut is not None or not deltas:
            return float("inf")
        opened, ticks = self.round.event, sorted(one.ticks for one in deltas)
        due = max(self.round.ticks + opened.deadline_ticks, ticks[0])
        quorum = max(1, min(opened.quorum, live))
        if len(ticks) >= quorum:
            due = min(due, max(self.round.ticks, ticks[quorum - 1]) + opened.grace_ticks)
        return due

    def commit(self, event: RoundCommitted) -> list[tuple[Key, float]]:
        """P1: the cut's blocks, each with its delta's weight; no block a second time."""
        cut = self.round.cut if self.round is not None else None
        if cut is None or event.version != self.version + 1:
            self.fault("P1", "R13", f"version {event.version} is committed without a cut")
            cut = []
        found: list[tuple[Key, float]] = []
        known = [seq for seq in cut if seq in self.deltas]
        total = sum(self.deltas[seq].tokens for seq in known)
        for seq in known:
            delta = self.deltas.pop(seq)
            for part in delta.event.blocks:
                key = (part.epoch, part.block)
                if self.held.pop(key, None) != Held(delta.incarnation, part.lease, DELIVERED):
                    self.fault("P4", "R3", f"block {key} is merged, and was not delivered")
                if key in self.merged:
                    self.fault("P1", "R4", f"block {key} is merged twice")
                self.merged.add(key)
                self.merged_tokens += self.tokens(part.block)
                self.outstanding_tokens -= self.tokens(part.block)
                found.append((key, delta.tokens / total))
        self.version, self.round = event.version, None
        self.updates[event.version] = event
        return found

    # -- blobs ------------------------------------------------------------------------------------

    def save(self, event: SnapshotSaved) -> None:
        self.snapshots[event.version] = event.blob

    def release(self, event: BlobsReleased) -> None:
        """R20: nothing that a joiner, or a merge, still needs."""
        kept = sorted(self.snapshots)[-2:]
        needed = {self.snapshots[version] for version in kept}
        needed |= {one.event.blob for one in self.deltas.values() if not one.void}
        since = kept[-1] if kept else 0
        needed |= {one.update_blob for version, one in self.updates.items() if version > since}
        for blob in sorted(needed & set(event.blobs)):
            self.fault("P3", "R20", f"blob {blob[:12]} is released, and is needed")
        self.released.update(event.blobs)
