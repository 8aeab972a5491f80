"""The deep audit: every version computed again from what the sites delivered (P3).

The plain audit reads the log alone. This one starts from the initial parameters, merges the deltas
of each logged cut with the ledger's weights, takes each step, and compares the update, parameters,
momentum and residual with what was committed, bit by bit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventlog.blobs import BlobStore
from eventlog.errors import AtollError, BlobDamaged, BlobMissing, BlobUnavailable
from leases import retention
from leases.findings import Refusal
from leases.outliers import ROUNDING
from leases.rows import Version
from leases.sizes import most_bytes
from leases.view import View
from outer import recover
from outer.arithmetic import check_ours
from outer.judging import examine
from outer.shelf import Shelf
from outer.versions import OuterState, snapshot_digests

_MAX_WRONG = 5  # deltas that are named


@dataclass(frozen=True, slots=True)
class Deep:
    """How deep the audit went. Every version after `from_version`, up to `through_version`, is
    recomputed and equal; `from_version` itself is the initial parameters (0) or a stored snapshot,
    whose digests were compared with the committed ones. `version`: the one where it failed."""

    ok: bool
    from_version: int
    through_version: int
    what: str
    version: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {
            "ok": self.ok,
            "from_version": self.from_version,
            "through_version": self.through_version,
            "what": self.what,
        }


async def deep(
    view: View,
    blobs: BlobStore,
    folder: Path,
    on_version: Callable[[int], None] = lambda _: None,
    refusals: Sequence[Refusal] = (),
) -> Deep:
    """Recompute all versions that retention still allows to, in the memory of one and the disk
    space of one round, and judge every delta again, the refused ones of `refusals` too. `folder`:
    scratch space; fetched blobs are removed from it again.

    Raises ArithmeticDiffers, and BlobUnavailable where the store does not answer.
    """
    check_ours(view.arithmetic(), "its verdict would mean nothing", "audit")
    shelf, begin, versions = Shelf(blobs, folder), first_recomputable(view), view.versions()
    through, wrong = begin, list[str]()
    try:
        state = (await recover.nearest(view, shelf, begin)).state
        if state.version != begin:
            return Deep(False, begin, begin, f"the state of version {begin} is not stored", begin)
        wrong += await _judge_refused(view, shelf, state, refusals)
        for row in versions[begin:]:
            through = row.version
            wrong += await _judge_merged(view, shelf, state, row)
            state = (await recover.step_again(view, shelf, state, row)).state
            await _compare_snapshot(view, shelf, row)
            shelf.drop(delta.blob for delta in view.merged_in(row.round))
            on_version(row.version)
    except BlobUnavailable:
        raise
    except AtollError as error:
        failed = max(through, begin)
        return Deep(False, begin, max(begin, failed - 1), str(error), failed)
    what = _what(begin, len(versions))
    return Deep(not wrong, begin, through, "; ".join([*wrong[:_MAX_WRONG], what]))


def first_recomputable(view: View) -> int:
    """The first version that all later ones can be computed from: 0, or that of the oldest kept
    snapshot behind the last version whose deltas retention has released."""
    released = set(retention.released(view.db))
    gone = [
        row.version
        for row in view.versions()
        if any(delta.blob in released for delta in view.merged_in(row.round))
    ]
    if not gone and view.run().parameters_blob not in released:
        return 0
    last_gone = max(gone, default=0)
    kept = [
        row.version
        for row in view.versions()
        if row.version >= last_gone
        and row.snapshot_blob is not None
        and row.snapshot_blob not in released
    ]
    return min(kept, default=view.run().version)


async def _compare_snapshot(view: View, shelf: Shelf, row: Version) -> None:
    """A snapshot that is still kept must hold what was computed here."""
    if row.snapshot_blob is None or row.snapshot_blob in retention.released(view.db):
        return
    path = await shelf.fetch(row.snapshot_blob, most_bytes(view.db, row.snapshot_blob))
    version, digests = await asyncio.to_thread(snapshot_digests, path)
    recover.check_digests(digests, row)
    if version != row.version:
        raise AtollError(f"the snapshot of version {row.version} says it is of {version}")
    shelf.drop([row.snapshot_blob])


async def _judge_merged(view: View, shelf: Shelf, state: OuterState, row: Version) -> list[str]:
    """P8: deltas that were merged though their blobs give cause to refuse them."""
    wrong = []
    for delta in view.merged_in(row.round):
        found = await examine(shelf, state.parameters, delta)
        if found.code:
            wrong.append(
                f"P8 R14: delta {delta.token[0]} of {delta.site} is merged in version "
                f"{row.version}, should have been refused as {found.code!r}: {found.reason}"
            )
    return wrong


async def _judge_refused(
    view: View, shelf: Shelf, state: OuterState, refusals: Sequence[Refusal]
) -> list[str]:
    """P8: deltas that were refused for what is not in their blobs. Blobs that are gone tell
    nothing."""
    wrong, released = [], set(retention.released(view.db))
    for one in refusals:
        delta = view.delta(one.delta)
        if delta is None or delta.blob in released:
            continue
        try:
            found = await examine(shelf, state.parameters, delta)
        except (BlobMissing, BlobDamaged):
            continue
        shelf.drop([delta.blob])
        bound = one.bound / ROUNDING if one.bound is not None else math.inf
        if found.code != one.code and not (one.code == "outlier" and found.norm > bound):
            should = f"as {found.code!r}: {found.reason}" if found.code else "not at all"
            wrong.append(
                f"P8 R14: delta {one.delta} of {delta.site} is refused as {one.code!r}, should "
                f"have been {should}"
            )
    return wrong


def _what(begin: int, num_versions: int) -> str:
    if begin == 0:
        return f"all {num_versions} versions recomputed from the initial parameters, bit by bit"
    return (
        f"versions {begin + 1} to {num_versions} recomputed, bit by bit, from the snapshot of "
        f"version {begin}; the deltas before it are released"
    )
