"""What the leading coordinator does beside the log, and what it has found.

Verdicts on deltas, merges of logged cuts, snapshots, the removal of released blobs: started where
the folded state needs them, one of each at a time, and all of it can be found again from log and
blobs. What was decided is forgotten, so nothing here grows with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from eventlog.codec import Entry
from eventlog.errors import BlobDamaged, BlobError, BlobMissing
from eventlog.events import (
    BlobsReleased,
    DeltaPublished,
    DeltaRefused,
    RoundCommitted,
    SnapshotSaved,
    shortened,
)
from eventlog.projector import Projection
from leases import retention
from leases.rows import Delta
from leases.view import View
from outer.codecs import DeltaInvalid, NonFinite
from outer.facts import Facts, Verdict
from outer.jobs import Jobs
from outer.keeping import snapshot_due
from outer.mending import Mending, reason
from outer.orphans import Orphans
from outer.workshop import Workshop


@dataclass(slots=True)
class Duties:
    """`verdicts` and `bad`: on open deltas, and those of them that refuse."""

    projection: Projection
    _view: View
    workshop: Workshop
    _jobs: Jobs
    say: Callable[[str], None]
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    merged: RoundCommitted | None = None
    saved: list[SnapshotSaved] = field(default_factory=list)
    _unjudged: set[int] = field(default_factory=set)  # deltas without a verdict, nor under way
    _unreleased: set[str] = field(default_factory=set)  # released by the log, still to be removed
    _orphans: Orphans = field(default_factory=Orphans)
    _mending: Mending = field(init=False)

    def __post_init__(self) -> None:
        self._mending = Mending(self._view, self.workshop)

    def resume(self) -> None:
        """Begin to lead: whoever led before may have died between saying and doing it."""
        self._unreleased = set(retention.released(self._view.db))
        self._orphans = Orphans()  # its ticks are those of a term
        undecided = self._view.deltas("undecided", "cut")  # cut: by a predecessor
        self._unjudged = {delta.token[0] for delta in undecided} - self.verdicts.keys()

    def note(self, entry: Entry) -> None:
        """What an event means for our work beside the log."""
        event = entry.event
        if isinstance(event, BlobsReleased):
            self._unreleased.update(event.blobs)
            self._orphans.forget(event.blobs)
        elif isinstance(event, DeltaPublished):
            self._unjudged.add(entry.record.sequence)
        elif isinstance(event, DeltaRefused):
            self._forget([event.delta[0]])
        elif isinstance(event, RoundCommitted):
            self._forget([delta.token[0] for delta in self._view.merged_in(event.round)])
        elif isinstance(event, SnapshotSaved):
            self.saved = [one for one in self.saved if one.version != event.version]

    def _forget(self, deltas: Iterable[int]) -> None:
        """Drop the verdicts on deltas."""
        for seq in deltas:
            self.verdicts.pop(seq, None)
            self.bad.discard(seq)
            self._unjudged.discard(seq)

    def facts(self) -> Facts:
        """What has been found so far."""
        shop = self.workshop
        ready = shop.state is not None and shop.state.version == self._view.run().version
        digests = None
        if ready and shop.digests is not None:
            digests = (shop.digests.parameters, shop.digests.momentum, shop.digests.residual)
        unnamed = self._orphans.ticks()
        place = self.projection.position
        return Facts(
            self.verdicts,
            self.merged,
            tuple(self.saved),
            digests,
            self.bad,
            unnamed,
            (place.sequence, place.log_digest),
        )

    def start(self) -> None:
        """Start whatever the folded state needs and is not under way."""
        run, round_ = self._view.run(), self._view.round()
        state = self.workshop.state
        pending = self.merged.version if self.merged else None
        if state is None or (state.version != run.version and state.version != pending):
            if "merge" not in self._jobs.tasks:
                self._jobs.start("recover", self._recover())
            return
        if self._unreleased:
            self._jobs.start("release", self._release())
        if self._orphans.due(self._view):
            self._jobs.start("orphans", self._orphans.look(self.workshop.blobs, self._view))
        for seq in list(self._unjudged):
            if f"verdict {seq}" not in self._jobs.tasks:  # else it failed a moment ago
                self._unjudged.discard(seq)
                self._jobs.start(f"verdict {seq}", self._judge(seq))
        if self.merged is not None and (round_ is None or round_.cut != self.merged.cut):
            self.merged = None
        if state.version != run.version:
            return
        cut = round_ is not None and round_.state == "closed"
        under_way = self.merged is not None or "merge" in self._jobs.tasks
        if cut and not under_way and self._cut_is_judged():
            self._jobs.start("merge", self._merge())
        self._start_snapshot(run.version)
        if run.state != "finished" and self._mending.is_due():
            self._jobs.start("look for lost blobs", self._mend())

    def _cut_is_judged(self) -> bool:
        return all(delta.token[0] in self.verdicts for delta in self._view.deltas("cut"))

    def _start_snapshot(self, version: int) -> None:
        if not any(one.version == version for one in self.saved) and snapshot_due(self._view):
            self._jobs.start(f"snapshot {version}", self._snapshot(version))

    async def _recover(self) -> None:
        self.merged = None
        await self.workshop.recover(self._view)

    async def _judge(self, seq: int) -> None:
        delta = self._open(seq)
        if delta is None:
            return
        try:
            verdict = await self.workshop.verdict(delta)
        except BlobError:
            self._unjudged.add(seq)  # to be asked again, when this attempt has ended
            raise
        if self._open(seq) is None:
            return  # it was decided meanwhile
        self.verdicts[seq] = verdict
        if verdict.code:
            self.bad.add(seq)

    def _open(self, seq: int) -> Delta | None:
        delta = self._view.delta(seq)
        return delta if delta is not None and delta.state in ("undecided", "cut") else None

    async def _merge(self) -> None:
        round_ = self._view.round()
        if round_ is None or round_.state != "closed":
            return
        position = self.projection.position
        deltas = self._view.deltas("cut")
        try:
            self.merged = await self.workshop.merge(
                self._view, round_, deltas, position.sequence, position.log_digest
            )
        except (BlobMissing, BlobDamaged, DeltaInvalid, NonFinite) as error:
            blobs = [delta.blob for delta in deltas]
            rotten = await self.workshop.weed(blobs)
            if isinstance(error, NonFinite) and not rotten:
                raise  # it would come again
            self.say(f"round {round_.round}: {error}; checking its deltas again")
            self.workshop.forget(blobs)
            seqs = [delta.token[0] for delta in deltas]
            self._forget(seqs)
            self._unjudged.update(seqs)

    async def _snapshot(self, version: int, why: str = "") -> None:
        row = self._view.version(version)
        if row is None:
            return
        saved = await self.workshop.snapshot(row)
        if saved is not None:
            self.saved.append(saved.model_copy(update={"reason": why}) if why else saved)

    async def _mend(self) -> None:
        """Where a needed blob is lost, store the newest version whole: it needs none before it."""
        lost = await self._mending.look()
        row = self._view.version(self._view.run().version)
        if not lost or any(one.version == row.version for one in self.saved if row):
            return
        newest = row.snapshot_blob if row else self._view.run().parameters_blob
        if row is not None and newest is None:
            why = shortened(reason(lost, row.version))
            self.say(f"{why}; it is stored as a snapshot now")
            self._jobs.start(f"snapshot {row.version}", self._snapshot(row.version, why))
        elif newest in lost:
            self.say(f"{lost[newest]}: stored again")
            await self._mending.store_again(newest)

    async def _release(self) -> None:
        """R20: remove what the log has released, and nothing that was named again since."""
        named = set(self._unreleased)
        blobs = retention.still_released(self._view.db, named)
        await self.workshop.blobs.release(blobs)
        self.workshop.forget(blobs)
        self._unreleased -= named
