"""Reads a log file from its begin, and trusts nothing in it that a digest does not prove."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from eventlog import frames
from eventlog.blobs import CHUNK_BYTES, BlobRef, combine
from eventlog.chain import FORMAT, Record, start
from eventlog.codec import unpack
from eventlog.errors import AtollError, EventInvalid, LogDamaged, RunUnknown
from eventlog.frames import FOOTER, HEADS, PREFIX_BYTES, RECORD, SEAL_BYTES, Chunk


@dataclass(frozen=True, slots=True)
class Placed:
    """A record of a file, and the offset behind its frame. `more`: the next record belongs to
    the same atomic append."""

    record: Record
    end: int
    more: bool


class _Torn(Exception):
    """The file ends within a frame."""


class Scanner:
    """Verifies frame by frame, in memory that does not grow with the log.

    `sequence`, `digest`: the last record read, and D there. `offset`: behind the last whole frame.
    `end` says why `frames` stopped: at the `footer`, at the end of a file without one (`open`), or
    within a frame (`torn`); after the latter two it may be called again, and goes on behind the
    last whole append with what is there by then.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Read the header. Raises AtollError: no atoll log; LogDamaged: a damaged header."""
        self._file, self._path = file, path
        if file.read(len(FORMAT)) != FORMAT:
            raise AtollError(f"{path} is no atoll log: it does not begin like one")
        name = file.read(int.from_bytes(file.read(2), "big"))
        self.digest = file.read(SEAL_BYTES)
        self.run = name.decode(errors="replace")
        if self.digest != start(self.run):
            raise LogDamaged(0, f"the header of {path}, which names the run, is damaged")
        self.sequence = 0
        self.offset = file.tell()
        self.end: Literal["open", "torn", "footer"] = "open"
        self.blobs: list[BlobRef] = []  # the complete ones
        self._seal = self.digest
        self._more = False
        self._half: Chunk | None = None  # the last chunk of a blob that goes on
        self._chunks: list[bytes] = []  # digests of the chunks of that blob
        self._whole = (self.offset, 0, self.digest)  # as of the end of the last whole append

    def frames(self) -> Iterator[Placed | Chunk]:
        """Whole, verified records, then blobs. Raises LogDamaged at the first thing wrong."""
        self.offset, self.sequence, self.digest = self._whole
        self._seal, self._more, self._half = self.digest, False, None
        self.blobs, self._chunks = [], []
        self._file.seek(0, os.SEEK_END)  # forgets what was buffered: the file may have changed
        self._file.seek(self.offset)
        self.end = "open"
        try:
            while prefix := self._file.read(PREFIX_BYTES):
                kind, head = self._read_head(prefix)
                body, seal = self._read_body(kind, head)
                end = self.offset + PREFIX_BYTES + len(head) + len(body) + SEAL_BYTES
                if kind == FOOTER:
                    self._take_footer(head, body, seal)
                    return
                item: Placed | Chunk
                if kind == RECORD:
                    item = self._take_record(head, body, seal, end)
                else:
                    item = self._take_chunk(head, body, seal)
                self.offset = end
                yield item
        except _Torn:
            self.end = "torn"

    def cut_off(self) -> LogDamaged:
        """The error for a file that should have a footer, and has none."""
        return self._wrong(
            f"{self._path} has no footer: its end was cut off, or it is still being written; "
            f"the last whole event is {self.sequence}"
        )

    def _wrong(self, what: str) -> LogDamaged:
        """Names the first sequence that is not what it was."""
        return LogDamaged(self.sequence + 1, what)

    def _read_head(self, prefix: bytes) -> tuple[bytes, bytes]:
        kind = prefix[:1]
        head = self._file.read(HEADS.get(kind, 0))
        if prefix == frames.prefix(kind, head) and kind in HEADS:
            return kind, head
        short = len(prefix) < PREFIX_BYTES or len(head) < HEADS.get(kind, 0)
        if (short and kind in HEADS) or self._ends_in_zeros(prefix + head):
            raise _Torn
        raise self._wrong(f"no whole frame begins at byte {self.offset} of {self._path}")

    def _read_body(self, kind: bytes, head: bytes) -> tuple[bytes, bytes]:
        num_bytes = frames.num_body_bytes(kind, head)
        if num_bytes > frames.MAX_BODY_BYTES:
            raise self._wrong(f"its frame claims {num_bytes} bytes, more than any may have")
        data = self._file.read(num_bytes + SEAL_BYTES)
        if len(data) < num_bytes + SEAL_BYTES:
            raise _Torn
        return data[:num_bytes], data[num_bytes:]

    def _ends_in_zeros(self, data: bytes) -> bool:
        """Whether `data`, and the file behind it, end in nothing but zeros, eight or more: room
        that a crash left reserved and unwritten. By chance, digests do not end so."""
        needed = min(8, len(data))
        num_zeros = len(data) - len(data.rstrip(b"\0"))
        while num_zeros and (data := self._file.read(1 << 20)):
            num_zeros = 0 if any(data) else num_zeros + len(data)
        return num_zeros >= needed

    def _take_record(self, head: bytes, body: bytes, seal: bytes, end: int) -> Placed:
        try:
            record = frames.record_of(head, body)
        except UnicodeDecodeError as error:
            raise self._wrong("its subject is no text") from error
        if record.sequence != self.sequence + 1:
            raise self._wrong(f"it is missing; event {record.sequence} stands in its place")
        if self.blobs or self._half:
            raise self._wrong("an event stands behind the blobs")
        digest = hashlib.sha256(self.digest + head + body).digest()  # `chain.extend`, as it stands
        more = seal != digest
        if more and seal != frames.record_seal(digest, more=True):
            if self._ends_in_zeros(seal):
                raise _Torn
            raise self._wrong("its bytes do not give the digest that the log has there")
        self.sequence, self.digest, self._seal, self._more = record.sequence, digest, seal, more
        if not more:
            self._whole = (end, self.sequence, digest)
        return Placed(record, end, more)

    def _take_chunk(self, head: bytes, body: bytes, seal: bytes) -> Chunk:
        chunk = frames.chunk_of(head, body)
        self._check_seal(head, body, seal, f"{self._blob(chunk)} is damaged")
        done = self._half.offset + CHUNK_BYTES if self._half else 0
        whole = chunk.offset + len(body) == chunk.blob.num_bytes
        if (
            (self._half and chunk.blob != self._half.blob)
            or chunk.offset != done
            or len(body) != min(CHUNK_BYTES, chunk.blob.num_bytes - done)
        ):
            raise self._wrong(f"a piece of {self._blob(chunk)} is missing or misplaced")
        if body:
            self._chunks.append(hashlib.sha256(body).digest())
        self._half = None if whole else chunk
        if whole:
            if combine(self._chunks, chunk.blob.num_bytes) != chunk.blob.digest:
                raise self._wrong(f"{self._blob(chunk)} has other bytes than its name says")
            self.blobs.append(chunk.blob)
            self._chunks = []
        return chunk

    def _blob(self, chunk: Chunk) -> str:
        """A blob, with the good news that all events stand before it."""
        return f"blob {chunk.blob.digest}, behind the {self.sequence:,} whole events,"

    def _take_footer(self, head: bytes, body: bytes, seal: bytes) -> None:
        try:
            content = unpack(body)
        except EventInvalid:
            content = None
        claimed = content.get("last_sequence") if isinstance(content, dict) else None
        if isinstance(claimed, int) and claimed > self.sequence:
            raise self._wrong(f"it is missing; by its footer the log goes on to {claimed}")
        self._check_seal(head, body, seal, "the footer is damaged, or stands on another log")
        if content != frames.footer_content(self.digest, self.sequence, self.blobs):
            raise self._wrong("the footer does not tell what stands before it")
        if self._more or self._half:
            raise self._wrong("the footer stands within an append or a blob")
        if self._file.read(1):
            raise self._wrong("bytes follow the footer")
        self.end = "footer"

    def _check_seal(self, head: bytes, body: bytes, seal: bytes, what: str) -> None:
        if seal != frames.next_seal(self._seal, head, body):
            raise self._wrong(what)
        self._seal = seal


def open_file(path: Path) -> BinaryIO:
    """A log file to read. Raises RunUnknown where there is none, AtollError where it is no file."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise RunUnknown(f"there is no log file {path}; check its name") from error
    except OSError as error:
        raise AtollError(f"the log file {path} cannot be read: {error.strerror}") from error
