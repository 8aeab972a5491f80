"""Feeds logs to the audit: from a file, which needs neither broker nor torch, or from a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from eventlog.blobs import BlobStore
from eventlog.chain import Record
from eventlog.errors import AtollError, LogDamaged
from eventlog.export import to_end
from eventlog.log import EventLog
from eventlog.scanner import Placed, Scanner, open_file
from leases.audit import Audit, Witness
from leases.life import Life
from ops.logfile import last_release

if TYPE_CHECKING:
    from outer.verify import Deep

Progress = Callable[[int, int], None]  # done of all, in a unit of the caller's
_BATCH = 500
UNKNOWN_RUN = "?"  # of a file whose header is damaged


class NoBlobs(AtollError):
    """A deep audit needs what a file does not hold."""


@contextmanager
def opened_audit(
    run: str, life: Life | None = None, witness: Witness | None = None
) -> Iterator[Audit]:
    """An audit whose memory is a file of its own, gone at the end."""
    with TemporaryDirectory(prefix="atoll-audit-") as folder:
        audit = Audit(run, Path(folder) / "audit.sqlite", life, witness)
        try:
            yield audit
        finally:
            audit.close()


@contextmanager
def audited_file(
    path: Path, life: Life | None, progress: Progress, witness: Witness | None = None
) -> Iterator[Audit]:
    """The audit of an exported log. Damage is a violation, never an error; raises AtollError where
    the file is no log of ours, or cannot be read."""
    with open_file(path) as file:
        try:
            scanner = Scanner(file, path)
        except LogDamaged as error:
            with opened_audit(UNKNOWN_RUN) as audit:
                audit.damage(error)
                yield audit
            return
        with opened_audit(scanner.run, life, witness) as audit:
            _feed(audit, scanner, path.stat().st_size, progress)
            yield audit


async def feed_run(audit: Audit, log: EventLog, progress: Progress) -> None:
    """Audit a run's log as it stands now, from where the audit is. Raises LogUnavailable."""
    last = await log.last_sequence()
    try:
        async for records in to_end(log, audit.position):
            audit.feed(records)
            progress(min(records[-1].sequence, last), last)
            await asyncio.sleep(0)
    except LogDamaged as error:
        audit.damage(error)


async def deep_run(audit: Audit, log: EventLog, blobs: BlobStore, progress: Progress) -> Deep:
    """Recompute the versions of a run, which may go on meanwhile: where one cannot be had, and the
    log has released blobs since it was read, it is read on and begun again. Raises as `deep`."""
    while True:
        found = await deep(audit, blobs, progress)
        if found.ok or audit.damaged or await last_release(log, audit.position) is None:
            return found
        await feed_run(audit, log, progress)


async def deep_file(audit: Audit, path: Path, progress: Progress) -> Deep:
    """Recompute the versions from the blobs of an export, unless it is damaged. Raises NoBlobs,
    and as `deep`."""
    from eventlog.dir_blobs import DirBlobs
    from eventlog.export import extract_blobs
    from outer.verify import Deep

    if audit.damaged:
        return Deep(False, 0, 0, "not tried: the file is damaged")
    with TemporaryDirectory(prefix="atoll-blobs-") as folder:
        store = Path(folder) / "blobs"
        if not extract_blobs(path, store):
            raise NoBlobs(f"{path} holds no blobs to recompute from: export it with --blobs")
        return await deep(audit, DirBlobs(store), progress)


async def deep(audit: Audit, blobs: BlobStore, progress: Progress) -> Deep:
    """Recompute the versions of an audited log. Raises ArithmeticDiffers, BlobUnavailable."""
    from outer import verify

    last = audit.view.run().version
    with TemporaryDirectory(prefix="atoll-deep-") as folder:
        return await verify.deep(
            audit.view,
            blobs,
            Path(folder),
            lambda version: progress(version, last),
            audit.refusals(),
        )


@contextmanager
def bar(what: str) -> Iterator[Progress]:
    """A progress bar on stderr, where that is a terminal; it leaves nothing behind."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


def _feed(audit: Audit, scanner: Scanner, num_bytes: int, progress: Progress) -> None:
    batch: list[Record] = []
    try:
        for item in scanner.frames():
            if isinstance(item, Placed):
                batch.append(item.record)
            if len(batch) >= _BATCH:
                audit.feed(batch)
                batch = []
                progress(scanner.offset, num_bytes)
    except LogDamaged as error:
        audit.feed(batch)
        audit.damage(error)
        return
    audit.feed(batch)
    if scanner.end != "footer":
        problem = scanner.cut_off()
        what = (
            f"{problem.what}; a later event attests the log through {audit.anchored_through}, "
            "nothing behind that"
        )
        audit.damage(LogDamaged(problem.sequence, what), "R18")
