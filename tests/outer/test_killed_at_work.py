"""P3: a coordinator that is killed in the middle of its work leaves what its successor needs.

Real processes die by SIGKILL within the real code (tests/support/dying.py); each time the successor
ends with the update, digests and snapshot that an undisturbed run made of the same deltas.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from eventlog.codec import decode
from eventlog.dir_blobs import DirBlobs
from eventlog.events import RoundClosed, RoundCommitted, SnapshotSaved
from eventlog.file_log import FileLog
from eventlog.projector import Projection, run_projection
from leases.table import LeaseTable
from leases.view import View
from outer.recover import state_at
from tests.support.coordinating import Site, World
from tests.support.dying import POINTS, coordinator
from tests.support.forkserver import CHECKOUT
from tests.support.history import RUN


async def undisturbed(folder: Path) -> World:
    """Two rounds with two unequal deltas each; a snapshot of every version."""
    folder.mkdir()
    world = World(
        folder,
        {"rounds": 2},
        outer={"update_codec": "4-bit"},
        snapshots={"every_versions": 1, "retention": "all"},
        rounds={"quorum": 2, "grace_s": 60.0, "deadline_s": 400.0},
    )
    await world.found()
    async with world.coordinated() as (task,):
        a, b = Site(world, "a"), Site(world, "b")
        await a.join()
        await b.join()
        for version in (1, 2):
            blocks = await b.train()
            await a.round()
            await b.publish(blocks[:1])
            await world.until(
                lambda v=version: (row := world.view.version(v)) and row.snapshot_blob, "a snapshot"
            )
            await a.catch_up()
            await b.catch_up()
        await asyncio.wait_for(task, 10)
    await world.fold()
    return world


async def copied(world: World, folder: Path) -> None:
    """The log up to the deltas of the second round, before its cut; the blobs as they were then."""
    records = await world.log.read(0)
    _, cut = [r for r in records if isinstance(decode(r).event, RoundClosed)]
    folder.mkdir(parents=True)
    log = FileLog.create(folder / "log", RUN)
    for record in records[: cut.sequence - 1]:
        last = await log.last(record.subject)
        await log.append(record.subject, [record.payload], last.sequence if last else 0)
    await log.close()
    shutil.copytree(world.folder / "blobs", folder / "blobs")
    row = world.view.version(2)
    assert row is not None and row.snapshot_blob is not None
    await DirBlobs(folder / "blobs").release([row.update_blob, row.snapshot_blob])


async def continued(folder: Path) -> View:
    """What a successor on another machine makes of what was left."""
    one = coordinator(folder, "second")
    view = View(one.projection.db)
    task = asyncio.create_task(one.run())
    for _ in range(6000):
        row = view.version(2) if view.exists() else None
        if task.done() or (row is not None and row.snapshot_blob is not None):
            break
        await asyncio.sleep(0.01)
    if not task.done():
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await one.log.close()
    return view


async def test_p3_the_successor_of_a_killed_coordinator_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    world = await undisturbed(tmp_path / "undisturbed")
    for point in POINTS:
        await copied(world, tmp_path / point)
    died = subprocess.run(
        [sys.executable, "-m", "tests.support.dying", str(tmp_path)],
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(died.stdout) == dict.fromkeys(POINTS, -9), died.stderr
    expected = world.view.version(2)
    assert expected is not None
    for point in POINTS:
        left = await kinds(tmp_path / point)
        assert left == LEFT[point], point
        view = await continued(tmp_path / point)
        row = view.version(2)
        assert row is not None and view.run().holder == "second"
        for part in (
            "update_blob",
            "parameters_digest",
            "momentum_digest",
            "residual_digest",
            "snapshot_blob",
        ):
            assert getattr(row, part) == getattr(expected, part), (point, part)
        blobs = DirBlobs(tmp_path / point / "blobs")
        again = await state_at(view, blobs, tmp_path / point / "again", 2, from_start=True)
        assert again.digests().residual == expected.residual_digest


LEFT = {  # of the second round: whether it was cut, committed, its snapshot saved
    "between cut and merge": (True, False, False),
    "during the merge": (True, False, False),
    "while the update is stored": (True, False, False),
    "between update and event": (True, False, False),
    "while a snapshot is written": (True, True, False),
    "while a snapshot is stored": (True, True, False),
}


async def kinds(folder: Path) -> tuple[bool, bool, bool]:
    log = FileLog.open(folder / "log", read_only=True)
    projection = Projection(":memory:", [LeaseTable()], RUN)
    await run_projection(projection, log)
    events = [decode(record).event for record in await log.read(0)]
    await log.close()
    found = [
        sum(isinstance(event, kind) for event in events)
        for kind in (RoundClosed, RoundCommitted, SnapshotSaved)
    ]
    assert found[0] <= 2 and found[1] <= 2 and found[2] <= 2
    return found[0] == 2, found[1] == 2, found[2] == 2
