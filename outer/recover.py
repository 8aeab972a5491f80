"""A version's tensors from the log and its blobs (P3), and the proof that they are the same.

Recovery starts at the newest snapshot (or the initial parameters) and takes every outer step again:
with the deltas where the residual matters (the coordinator, the audit), with the published updates
where it does not (evaluation). Each version's digests are compared with `RoundCommitted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eventlog.blobs import BlobStore, digest_file
from eventlog.errors import AtollError, BlobDamaged, BlobMissing
from leases import retention
from leases.rows import Delta, Version
from leases.sizes import most_bytes
from leases.view import View
from outer.digests import digest
from outer.merge import apply_update, take_step
from outer.schedule import rule_at
from outer.shelf import Shelf
from outer.versions import (
    Digests,
    OuterState,
    SnapshotInvalid,
    load_parameters,
    load_snapshot,
)

Say = Callable[[str], None]


class VersionDiffers(AtollError):
    """Recomputed tensors differ from what was committed: nothing may be decided with them."""

    def __init__(self, version: int, part: str, committed: str, computed: str) -> None:
        super().__init__(
            f"version {version}: the {part} recomputed from the log have digest {computed[:16]}, "
            f"committed was {committed[:16]}: this machine computes otherwise, or a blob was "
            "replaced; recover on the machine that committed it"
        )
        self.version, self.part = version, part


class StateLost(AtollError):
    """P3: a version cannot be recovered, for `blob` is gone. Where that is a delta, the updates
    would still give θ and m, but the residual e is made of the deltas alone, and nothing is decided
    with another."""

    def __init__(self, version: int, blob: str, lost: str, left: str) -> None:
        super().__init__(
            f"version {version} cannot be recovered: lost is {lost}. Restore blob {blob} from a "
            f"mirror of the store or an export made with --blobs, then try again; {left}"
        )
        self.blob = blob


@dataclass(frozen=True, slots=True)
class Recovered:
    """A version whose digests are those that were committed."""

    state: OuterState
    digests: Digests


async def state_at(
    view: View,
    blobs: BlobStore,
    folder: Path,
    version: int,
    *,
    from_start: bool = False,
    on_version: Callable[[int], None] = lambda _: None,
) -> OuterState:
    """θ, m and e after `version` steps, every step's digests verified. `from_start` ignores
    snapshots. Raises as `recovered_at`."""
    base = 0 if from_start else version
    return (await _steps(view, Shelf(blobs, folder), base, version, on_version)).state


async def recovered_at(view: View, shelf: Shelf, version: int) -> Recovered:
    """θ, m and e after `version` steps, with their digests, every step's verified.

    A snapshot that is lost or torn is passed over for the one before, and the shelf's `say` tells
    so. Raises VersionDiffers, StateLost, BlobMissing (an update that `parameters_at` needs),
    BlobUnavailable; where a fetched file has rotted, VersionDiffers, DeltaInvalid, NonFinite.
    """
    return await _steps(view, shelf, version, version, lambda _: None)


async def parameters_at(
    view: View, blobs: BlobStore, folder: Path, version: int, say: Say = lambda _: None
) -> dict[str, Tensor]:
    """θ of a version from the newest snapshot before it and the published updates, verified.
    Raises as `state_at`."""
    shelf = Shelf(blobs, folder, say)
    state = (await nearest(view, shelf, version)).state
    for row in view.versions(after=state.version):
        if row.version > version:
            break
        update = await _named(view, shelf, row.update_blob)
        found = await asyncio.to_thread(
            apply_update,
            state.parameters,
            state.momentum,
            update,
            rule_at(view, row.version, row.merged_tokens),
        )
        _check(row.version, "parameters", row.parameters_digest, found)
    return state.parameters


def check_digests(found: Digests, row: Version) -> None:
    """Raises VersionDiffers where a digest is not the committed one."""
    _check(row.version, "parameters", row.parameters_digest, found.parameters)
    _check(row.version, "momentum", row.momentum_digest, found.momentum)
    _check(row.version, "residual", row.residual_digest, found.residual)


async def nearest(view: View, shelf: Shelf, version: int) -> Recovered:
    """The newest stored state up to a version, verified: of the kept snapshots the newest that is
    whole, or the initial parameters. Raises StateLost, BlobUnavailable."""
    lost: list[tuple[str, str]] = []
    row = view.snapshot_at_most(version)
    while row is not None:
        what, blob = f"the snapshot of version {row.version}", row.snapshot_blob or ""
        try:
            return await _stored(view, shelf, row)
        except (BlobMissing, BlobDamaged, SnapshotInvalid, VersionDiffers) as error:
            lost.append((blob, f"{what} ({error})"))
        row = view.snapshot_at_most(row.version - 1)
        tried = "the one before is" if row else "the initial parameters are"
        shelf.say(f"{lost[-1][1]}; {tried} tried")
    what, blob = "the initial parameters", view.run().parameters_blob
    try:
        if (first := retention.first_released(view, version)) is None:
            return await _initial(view, shelf)
        lost.append((blob, f"{what} (what made version {first} of them is released)"))
    except (BlobMissing, BlobDamaged, SnapshotInvalid, VersionDiffers) as error:
        lost.append((blob, f"{what} ({error})"))
    named = "; ".join(text for _, text in lost)
    raise StateLost(version, lost[0][0], named, "without it this run cannot go on")


async def step_again(view: View, shelf: Shelf, state: OuterState, row: Version) -> Recovered:
    """The step that made a version, taken again on the state before it (which is consumed): the
    update is byte for byte the published one, and θ, m, e are the committed ones, or VersionDiffers
    is raised. Fetched deltas stay on the shelf. Raises StateLost where one is gone."""
    deltas = [
        (await _merged(view, shelf, row, delta), delta.weight or 0.0)
        for delta in view.merged_in(row.round)
    ]
    update_path = shelf.folder / f"again-{row.version}"
    stepped, digests = await asyncio.to_thread(
        take_step,
        state,
        deltas,
        rule=rule_at(view, row.version, row.merged_tokens),
        codec=row.update_codec,
        update_path=update_path,
    )
    update = await asyncio.to_thread(digest_file, update_path)
    update_path.unlink()
    check_digests(digests, row)
    _check(row.version, "published update", row.update_blob, update.digest)
    return Recovered(stepped, digests)


async def _steps(
    view: View,
    shelf: Shelf,
    base: int,
    version: int,
    on_version: Callable[[int], None],
) -> Recovered:
    found = await nearest(view, shelf, base)
    for row in view.versions(after=found.state.version):
        if row.version > version:
            break
        found = await step_again(view, shelf, found.state, row)
        on_version(row.version)
    return found


async def _stored(view: View, shelf: Shelf, row: Version) -> Recovered:
    """The snapshot of a version. A local file that is not what it should be is fetched anew."""
    assert row.snapshot_blob is not None
    was_here = (shelf.folder / row.snapshot_blob).exists()
    path = await _named(view, shelf, row.snapshot_blob, check=False)  # the digests tell
    try:
        state = await asyncio.to_thread(load_snapshot, path)
        digests = await asyncio.to_thread(state.digests)
        check_digests(digests, row)
    except (SnapshotInvalid, VersionDiffers):
        shelf.drop([path.name])
        if not was_here:
            raise
        return await _stored(view, shelf, row)
    return Recovered(state, digests)


async def _initial(view: View, shelf: Shelf) -> Recovered:
    path = await _named(view, shelf, view.run().parameters_blob)
    parameters = await asyncio.to_thread(load_parameters, path)
    _check(0, "parameters", view.run().initial_digest, await asyncio.to_thread(digest, parameters))
    state = OuterState.of_own(parameters)
    return Recovered(state, await asyncio.to_thread(state.digests))


async def _named(view: View, shelf: Shelf, blob: str, *, check: bool = True) -> Path:
    """The file of an update, a snapshot, or the initial parameters."""
    return await shelf.fetch(blob, most_bytes(view.db, blob), check=check)


async def _merged(view: View, shelf: Shelf, row: Version, delta: Delta) -> Path:
    """The file of a delta that a version was merged from. Raises StateLost."""
    try:
        return await shelf.fetch(delta.blob, delta.num_bytes)
    except (BlobMissing, BlobDamaged) as error:
        what = f"delta {delta.token[0]} of {delta.site}, merged in version {row.version} ({error})"
        snapshot = view.snapshot_at_most(row.version - 1)
        whole = (
            f"the snapshot of version {snapshot.version}" if snapshot else "the initial parameters"
        )
        left = f"without it the newest whole state is {whole}, and this run cannot go on"
        raise StateLost(row.version, delta.blob, what, left) from error


def _check(version: int, part: str, committed: str, computed: str) -> None:
    if committed != computed:
        raise VersionDiffers(version, part, committed, computed)
