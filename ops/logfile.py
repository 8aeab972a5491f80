"""Log files as the operator handles them: verified, exported, imported."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from eventlog.blobs import BlobStore
from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.errors import AtollError, BlobMissing, LogDamaged
from eventlog.events import COORDINATOR, BlobsReleased
from eventlog.export import ExportSummary, extract_blobs, read_export, to_end, write_export
from eventlog.log import EventLog
from eventlog.scanner import Scanner, open_file


class AnotherHistory(AtollError):
    """Two logs of one run's name differ in an event that both have."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a log file proves: its whole events up to `last_sequence`, and D there (hex). `problem`
    is the first thing wrong, at or behind the event after it; None where the file is whole."""

    run: str
    last_sequence: int
    log_digest: str
    num_blobs: int
    problem: LogDamaged | None


def verify(path: Path) -> Verdict:
    """Read every byte. Raises AtollError where the file is no atoll log at all."""
    with open_file(path) as file:
        scanner = Scanner(file, path)
        problem = None
        try:
            for _ in scanner.frames():
                pass
            if scanner.end != "footer":
                problem = scanner.cut_off()
        except LogDamaged as error:
            problem = error
        digest, blobs = scanner.digest.hex(), len(scanner.blobs)
        return Verdict(scanner.run, scanner.sequence, digest, blobs, problem)


async def export(log: EventLog, blobs: BlobStore | None, target: Path) -> ExportSummary:
    """Write the log as it stands now to `target`, with all of `blobs` where given.

    A run that goes on may release blobs while others are fetched; then that is exported too, with
    what was stored until then, so that the file lacks nothing it does not say is released. Raises
    as `write_export`, and what the log and the store raise when they cannot be reached.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    last = await log.last_sequence()  # first: blobs are visible before the events that name them
    with TemporaryDirectory(prefix=".blobs-", dir=target.parent) as folder:
        held: dict[str, Path] = {}
        while blobs is not None:
            await _fetch_more(blobs, Path(folder), held)
            if (release := await last_release(log, last)) is None:
                break
            last = release
        return await write_export(log.run, _through(log, last), target, sorted(held.items()))


async def last_release(log: EventLog, after: int) -> int | None:
    """The sequence of the last event behind another that released blobs."""
    found = None
    async for records in to_end(log, after, [COORDINATOR]):
        for record in records:
            if isinstance(decode(record).event, BlobsReleased):
                found = record.sequence
    return found


def import_file(path: Path, folder: Path) -> Path:
    """Verify an export and keep it in `folder`: the file as `log.atoll`, its blobs in `blobs/`.

    It stays the same history, with sequences and times as they are. A longer log of the same
    history replaces a shorter one; a shorter one changes nothing. Raises LogDamaged,
    AnotherHistory.
    """
    verdict = verify(path)
    if verdict.problem:
        raise verdict.problem
    target = folder / "log.atoll"
    held = _last_common(target, path) if target.exists() else 0
    folder.mkdir(parents=True, exist_ok=True)
    extract_blobs(path, folder / "blobs")
    if not target.exists() or held < verdict.last_sequence:
        part = target.with_name(target.name + ".part")
        shutil.copyfile(path, part)
        part.replace(target)
    return target


def _last_common(held: Path, new: Path) -> int:
    """The last sequence of the log held so far, all of whose events must be the new one's, as far
    as that goes."""
    for ours, theirs in zip(read_export(held), read_export(new), strict=False):
        if ours != theirs:
            raise AnotherHistory(
                f"{new} differs from the log held in {held} at sequence {ours.sequence}: they are "
                "two histories of one name; import it into another folder"
            )
    return verify(held).last_sequence


async def _through(log: EventLog, last: int) -> AsyncIterator[list[Record]]:
    async for records in to_end(log):
        wanted = [record for record in records if record.sequence <= last]
        if wanted:
            yield wanted
        if len(wanted) < len(records):
            return


async def _fetch_more(blobs: BlobStore, folder: Path, held: dict[str, Path]) -> None:
    for digest in set(await blobs.digests()) - held.keys():
        with suppress(BlobMissing):  # it is released just now
            await blobs.get(digest, folder / digest)
            held[digest] = folder / digest
