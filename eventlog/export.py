"""A whole log, with its blobs if wanted, as one file that stands without a broker.

The layout is in `eventlog.frames`. An export proves that it was not damaged: every byte of it is
covered by a digest. Against forgery it proves only what a digest known elsewhere covers (R18).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from eventlog import frames
from eventlog.blobs import CHUNK_BYTES, BlobRef, digest_file
from eventlog.chain import Record, extend, start
from eventlog.dir_blobs import DirBlobs, sync_directory
from eventlog.errors import AtollError, BlobDamaged, LogDamaged
from eventlog.frames import Chunk
from eventlog.log import EventLog
from eventlog.scanner import Placed, Scanner, open_file

READ_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export holds. `log_digest`: D(last_sequence) in hex; `num_bytes`: of the file."""

    run: str
    num_records: int
    last_sequence: int
    log_digest: str
    num_blobs: int
    num_bytes: int


async def to_end(
    log: EventLog, after: int = 0, subjects: Sequence[str] | None = None
) -> AsyncIterator[list[Record]]:
    """The records after a sequence, in batches, up to where the log ends by then."""
    while records := await log.read(after, subjects=subjects, limit=READ_RECORDS):
        after = records[-1].sequence
        yield records


async def write_export(
    run: str,
    records: AsyncIterable[Sequence[Record]],
    target: Path,
    blobs: Iterable[tuple[str, Path]] = (),
) -> ExportSummary:
    """Write a whole log, from sequence 1, to `target`, which appears complete or not at all.

    `blobs`: (digest, file that holds it). Raises LogDamaged on a gap, BlobDamaged where a file is
    not what its digest says, AtollError where the target cannot be written.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")  # no other's
    try:
        with part.open("wb") as file:
            summary = await _write(run, records, file, blobs)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        sync_directory(target.parent)
    except OSError as error:
        why = error.strerror or error
        raise AtollError(f"the log cannot be exported to {target}: {why}") from error
    finally:
        part.unlink(missing_ok=True)
    return summary


def read_header(path: Path) -> str:
    """The name of the run whose log this is. Raises AtollError where it is no atoll log."""
    with open_file(path) as file:
        return Scanner(file, path).run


def read_export(path: Path) -> Iterator[Record]:
    """The records of an exported log, each verified before it is handed out.

    Raises LogDamaged, naming the first wrong sequence, where a byte, an event or a blob is not
    what was exported; where the end was cut off, it does so after all whole records. So the file is
    proven whole when, and only when, the iterator ends by itself.
    """
    read_header(path)
    return _records(path)


def extract_blobs(path: Path, store_dir: Path) -> list[BlobRef]:
    """Put the blobs of an export into the `DirBlobs` at `store_dir`, each visible once it is whole.

    Verifies the whole file; raises LogDamaged.
    """
    store = DirBlobs(store_dir)
    with open_file(path) as file:
        scanner = Scanner(file, path)
        for item in scanner.frames():
            if isinstance(item, Chunk):
                _keep(store, item)
        if scanner.end != "footer":
            raise scanner.cut_off()
        return scanner.blobs


def _records(path: Path) -> Iterator[Record]:
    with open_file(path) as file:
        scanner = Scanner(file, path)
        for item in scanner.frames():
            if isinstance(item, Placed):
                yield item.record
        if scanner.end != "footer":
            raise scanner.cut_off()


async def _write(
    run: str,
    records: AsyncIterable[Sequence[Record]],
    file: BinaryIO,
    blobs: Iterable[tuple[str, Path]],
) -> ExportSummary:
    digest, sequence, held = start(run), 0, []
    file.write(frames.pack_header(run))
    async for batch in records:
        for record in batch:
            if record.sequence != sequence + 1:
                what = f"it is missing; event {record.sequence} came in its place"
                raise LogDamaged(sequence + 1, what)
            digest, sequence = extend(digest, record), record.sequence
            file.write(frames.pack_record(record, digest, more=False))
    seal = digest
    for name, path in sorted(blobs):
        blob, seal = _write_blob(file, seal, name, path)
        held.append(blob)
    file.write(frames.pack_footer(seal, digest, sequence, held))
    return ExportSummary(run, sequence, sequence, digest.hex(), len(held), file.tell())


def _write_blob(file: BinaryIO, seal: bytes, name: str, path: Path) -> tuple[BlobRef, bytes]:
    blob = digest_file(path)
    if blob.digest != name:
        raise BlobDamaged(f"{path} is not the blob {name}; fetch it again")
    with path.open("rb") as source:
        for offset in range(0, max(blob.num_bytes, 1), CHUNK_BYTES):
            chunk = Chunk(blob, offset, source.read(CHUNK_BYTES))
            data, seal = frames.pack_chunk(seal, chunk)
            file.write(data)
    return blob, seal


def _keep(store: DirBlobs, chunk: Chunk) -> None:
    part = store.part(chunk.blob.digest)
    with part.open("r+b" if chunk.offset else "wb") as file:
        file.seek(chunk.offset)
        file.write(chunk.data)
        if chunk.offset + len(chunk.data) == chunk.blob.num_bytes:
            file.flush()
            os.fsync(file.fileno())
            store.adopt(part, chunk.blob.digest)
