"""The second ledger's deltas, rounds, versions and blobs (see `ops.simulate.holdings`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eventlog.events import (
    BlobsReleased,
    DeltaPublished,
    DeltaRefused,
    RoundClosed,
    RoundCommitted,
    RoundOpened,
    SnapshotSaved,
)
from ops.simulate.holdings import DELIVERED, TRAINED, Held, Holdings, Key


@dataclass(slots=True)
class Delta:
    """A published delta. `void`: it stands for nothing, and a refusal is owed."""

    incarnation: int
    site: str
    event: DeltaPublished
    ticks: int
    void: bool
    tokens: int
    trained: set[Key]  # of its blocks, those that its incarnation held trained when it came


@dataclass(slots=True)
class Round:
    """The round that is under way."""

    event: RoundOpened
    ticks: int
    cut: list[int] | None = None


@dataclass(slots=True)
class Ledger(Holdings):
    """Holdings, and what becomes of them."""

    deltas: dict[int, Delta] = field(default_factory=dict)
    round: Round | None = None
    version: int = 0
    updates: dict[int, RoundCommitted] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    initial: str = ""  # the initial parameters' blob
    _made_of: dict[int, set[str]] = field(default_factory=dict)  # blobs of a version's deltas

    # -- deltas -----------------------------------------------------------------------------------

    def publish(self, seq: int, site: str, incarnation: int, event: DeltaPublished, ticks: int,
                void: bool) -> None:  # fmt: skip
        """R1, R3, R12: whole blocks, trained by the writer under these leases; one undecided."""
        keys = [(one.epoch, one.block) for one in event.blocks]
        tokens = sum(self.tokens(one.block) for one in event.blocks if one.block < self.num_blocks)
        mine = self.of(incarnation)
        trained = {key for key in keys if mine.get(key) == TRAINED}
        self.deltas[seq] = Delta(incarnation, site, event, ticks, void, tokens, trained)
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
            back = key in one.trained and held.phase == TRAINED and held.lease[0] < event.delta[0]
            if one.void and back:
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
        self.members = {quota.incarnation[0] for quota in event.quotas}
        self.round = Round(event, ticks)

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
        merged: set[str] = set()
        known = [seq for seq in cut if seq in self.deltas]
        total = sum(self.deltas[seq].tokens for seq in known)
        for seq in known:
            delta = self.deltas.pop(seq)
            merged.add(delta.event.blob)
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
        self._made_of[event.version] = merged
        self.version, self.round = event.version, None
        self.updates[event.version] = event
        return found

    # -- blobs ------------------------------------------------------------------------------------

    def save(self, event: SnapshotSaved) -> None:
        self.snapshots[event.version] = event.blob

    def release(self, event: BlobsReleased, read: int, starts: Iterable[int]) -> None:
        """R20: nothing that a merge, whoever recovers from the second-newest snapshot, or a joiner
        needs, which loads one of `starts` or a later one. Behind `read`, what its writer had
        folded, the same bytes may have been delivered anew: that delta is refused, and no more."""
        kept = sorted(self.snapshots)[-2:]
        since = min([kept[0] if len(kept) > 1 else 0, *starts])
        needed = {self.initial, *(one for v, one in self.snapshots.items() if v >= since)}
        needed |= {
            one.event.blob for seq, one in self.deltas.items() if not one.void and seq <= read
        }
        needed |= {blob for v, blobs in self._made_of.items() if v > since for blob in blobs}
        needed |= {one.update_blob for version, one in self.updates.items() if version > since}
        for blob in sorted(needed & set(event.blobs)):
            self.fault("P3", "R20", f"blob {blob[:12]} is released, and is needed")
        self.released.update(event.blobs)
