"""A version's tensors from the log and its blobs (P3), and the proof that they are the same.

Recovery starts at the newest snapshot (or the initial parameters) and takes every outer step again:
with the deltas where the residual matters (the coordinator, the audit), with the published updates
where it does not (evaluation). Each version's digests are compared with `RoundCommitted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from eventlog.blobs import BlobStore, digest_file
from eventlog.errors import AtollError, BlobDamaged, BlobMissing
from leases.rows import Delta, Version
from leases.view import View
from outer.merge import apply_update, take_step
from outer.versions import OuterState, digest, load_parameters, load_snapshot


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
    """P3: a blob that the newest version is recovered from is gone. The updates would still give θ
    and m, but the residual e is made of the deltas alone, and nothing is decided with another."""

    def __init__(self, view: View, blob: str, what: str, error: Exception) -> None:
        super().__init__(
            f"version {view.run().version} cannot be recovered: lost is {what} ({error}). Restore "
            f"blob {blob} from a mirror of the store or an export made with --blobs, then start "
            f"the coordinator again; {_newest_whole(view, blob)}"
        )
        self.blob = blob


def _newest_whole(view: View, lost: str) -> str:
    """What is left for whoever cannot restore a blob."""
    snapshot = view.snapshot_at_most(view.run().version)
    if snapshot is not None and snapshot.snapshot_blob != lost:
        left = f"the snapshot of version {snapshot.version}"
    elif snapshot is None and view.run().parameters_blob != lost:
        left = "the initial parameters"
    else:
        return "without it this run cannot go on"
    return f"without it the newest whole state is {left}, and this run cannot go on from there"


async def fetch(blobs: BlobStore, name: str, folder: Path) -> Path:
    """The blob as a local file named by its digest; what is there already is used."""
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        await blobs.get(name, path)
    return path


async def state_at(
    view: View,
    blobs: BlobStore,
    folder: Path,
    version: int,
    *,
    from_start: bool = False,
    on_version: Callable[[int], None] = lambda _: None,
) -> OuterState:
    """θ, m and e after `version` steps, every step's digests verified.

    `from_start` ignores snapshots (a deep audit). Raises VersionDiffers, StateLost (a delta is
    gone), BlobMissing and BlobDamaged (what it starts from is), BlobUnavailable.
    """
    state = await nearest(view, blobs, folder, 0 if from_start else version)
    for row in view.versions(after=state.version):
        if row.version > version:
            break
        state = await step_again(view, blobs, folder, state, row)
        on_version(row.version)
    return state


async def parameters_at(
    view: View, blobs: BlobStore, folder: Path, version: int
) -> dict[str, Tensor]:
    """θ of a version from the newest snapshot before it and the published updates, verified.
    Raises as `state_at`."""
    state, config = await nearest(view, blobs, folder, version), view.config().outer
    for row in view.versions(after=state.version):
        if row.version > version:
            break
        update = await fetch(blobs, row.update_blob, folder)
        await asyncio.to_thread(
            apply_update,
            state.parameters,
            state.momentum,
            update,
            lr=config.lr,
            momentum_coefficient=config.momentum,
        )
        _check(row.version, "parameters", row.parameters_digest, digest(state.parameters))
    return state.parameters


def check_state(state: OuterState, row: Version) -> None:
    """Raises VersionDiffers where a digest is not the committed one."""
    found = state.digests()
    _check(row.version, "parameters", row.parameters_digest, found.parameters)
    _check(row.version, "momentum", row.momentum_digest, found.momentum)
    _check(row.version, "residual", row.residual_digest, found.residual)


async def nearest(view: View, blobs: BlobStore, folder: Path, version: int) -> OuterState:
    """The newest stored state up to a version, verified: a snapshot, or the initial parameters."""
    snapshot = view.snapshot_at_most(version)
    if snapshot is not None and snapshot.snapshot_blob is not None:
        path = await fetch(blobs, snapshot.snapshot_blob, folder)
        state = await asyncio.to_thread(load_snapshot, path)
        await asyncio.to_thread(check_state, state, snapshot)
        return state
    path = await fetch(blobs, view.run().parameters_blob, folder)
    parameters = await asyncio.to_thread(load_parameters, path)
    _check(0, "parameters", view.run().initial_digest, digest(parameters))
    return OuterState.initial(parameters)


async def step_again(
    view: View, blobs: BlobStore, folder: Path, state: OuterState, row: Version
) -> OuterState:
    """The step that made a version, taken again on the state before it (which is consumed): the
    update is byte for byte the published one, and θ, m, e are the committed ones, or VersionDiffers
    is raised. Fetched deltas stay in the folder. Raises StateLost where one is gone."""
    config = view.config().outer
    deltas = [
        (await _merged(view, blobs, folder, row, delta), delta.weight or 0.0)
        for delta in view.merged_in(row.round)
    ]
    update_path = folder / f"again-{row.version}"
    state = await asyncio.to_thread(
        take_step,
        state,
        deltas,
        lr=config.lr,
        momentum=config.momentum,
        codec=row.update_codec,
        update_path=update_path,
    )
    update = await asyncio.to_thread(digest_file, update_path)
    update_path.unlink()
    await asyncio.to_thread(check_state, state, row)
    _check(row.version, "published update", row.update_blob, update.digest)
    return state


async def _merged(view: View, blobs: BlobStore, folder: Path, row: Version, delta: Delta) -> Path:
    """The file of a delta that a version was merged from. Raises StateLost."""
    try:
        return await fetch(blobs, delta.blob, folder)
    except (BlobMissing, BlobDamaged) as error:
        what = f"delta {delta.token[0]} of {delta.site}, merged in version {row.version}"
        raise StateLost(view, delta.blob, what, error) from error


def _check(version: int, part: str, committed: str, computed: str) -> None:
    if committed != computed:
        raise VersionDiffers(version, part, committed, computed)
