"""The bytes of a log file: one layout for logs being written and for exports.

    file    FORMAT, u16 length of the run's name, the name, D(0), then frames
    frame   kind (1), crc32 of kind and head (4), head, body, seal (32)
      R     head and body: `Record.frame()`; seal: D(i), or sha256(MORE || D(i)) where more records
            of the same atomic append follow
      B     head: blob digest (32), u64 offset, u64 blob bytes, u32 chunk bytes; body: the chunk
      F     head: u32 length; body: msgpack of records, last_sequence, log_digest, blobs

All integers are big-endian. Blob frames follow the last record, the footer ends the file. The seal
of a B or F frame is sha256(seal before || head || body), where the seal before the first of them is
the last D(i); so no byte can change, go, come or move unseen. Whether an append goes on is said by
*which* of two digests seals a record: the mark needs no byte that a digest would not cover, and
D(i) stays the digest of the log alone, however it was batched. The crc tells a length that was
damaged from a frame that was cut off: only the latter may be cut back after a crash.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eventlog.blobs import BlobRef
from eventlog.chain import FORMAT, HEAD_BYTES, Record, start, unpack_head
from eventlog.codec import pack
from eventlog.errors import LogDamaged

RECORD, BLOB, FOOTER = b"R", b"B", b"F"
PREFIX_BYTES = 5
SEAL_BYTES = 32
MAX_BODY_BYTES = 1 << 26
_MORE = b"atoll append goes on\n"
_CHUNK = struct.Struct(">32sQQI")
_FOOT = struct.Struct(">I")
HEADS = {RECORD: HEAD_BYTES, BLOB: _CHUNK.size, FOOTER: _FOOT.size}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a blob: CHUNK_BYTES of it, or what is left at its end."""

    blob: BlobRef
    offset: int
    data: bytes


def pack_header(run: str) -> bytes:
    """How a log file of a run begins."""
    name = run.encode()
    return FORMAT + struct.pack(">H", len(name)) + name + start(run)


def pack_record(record: Record, digest: bytes, more: bool) -> bytes:
    """A record's frame; `digest` is D(i) of this very record."""
    frame = record.frame()
    return prefix(RECORD, frame[:HEAD_BYTES]) + frame + record_seal(digest, more)


def pack_chunk(seal: bytes, chunk: Chunk) -> tuple[bytes, bytes]:
    """A blob chunk's frame behind a frame with `seal`; the frame and its own seal."""
    digest = bytes.fromhex(chunk.blob.digest)
    head = _CHUNK.pack(digest, chunk.offset, chunk.blob.num_bytes, len(chunk.data))
    return _sealed(BLOB, seal, head, chunk.data)


def pack_footer(seal: bytes, digest: bytes, num_records: int, blobs: Sequence[BlobRef]) -> bytes:
    """The footer behind a frame with `seal`; `digest` is D of the last record."""
    body = pack(footer_content(digest, num_records, blobs))
    return _sealed(FOOTER, seal, _FOOT.pack(len(body)), body)[0]


def parse_record(data: bytes, sequence: int) -> Record:
    """The record in the bytes of its frame. Raises LogDamaged where another stands there."""
    kind, head = data[:1], data[PREFIX_BYTES : PREFIX_BYTES + HEAD_BYTES]
    if kind != RECORD or data[:PREFIX_BYTES] != prefix(kind, head):
        raise LogDamaged(sequence, "the file has changed since it was opened")
    try:
        record = record_of(head, data[PREFIX_BYTES + HEAD_BYTES : -SEAL_BYTES])
    except UnicodeDecodeError as error:
        raise LogDamaged(sequence, "its subject is no text") from error
    if record.sequence != sequence:
        raise LogDamaged(sequence, f"event {record.sequence} stands there")
    return record


def prefix(kind: bytes, head: bytes) -> bytes:
    """What stands before a frame's head."""
    return kind + zlib.crc32(kind + head).to_bytes(4, "big")


def num_body_bytes(kind: bytes, head: bytes) -> int:
    """How long the body of a frame is, by its head."""
    if kind == RECORD:
        _, _, num_subject, num_payload = unpack_head(head)
        return num_subject + num_payload
    return int.from_bytes(head[-4:], "big")


def record_of(head: bytes, body: bytes) -> Record:
    """A record from head and body of its frame. Raises UnicodeDecodeError."""
    sequence, time_ns, num_subject, _ = unpack_head(head)
    return Record(sequence, body[:num_subject].decode(), time_ns, body[num_subject:])


def chunk_of(head: bytes, body: bytes) -> Chunk:
    """A piece of a blob from head and body of its frame."""
    digest, offset, num_bytes, _ = _CHUNK.unpack(head)
    return Chunk(BlobRef(digest.hex(), num_bytes), offset, body)


def record_seal(digest: bytes, more: bool) -> bytes:
    """What seals the record whose D(i) is `digest`."""
    return hashlib.sha256(_MORE + digest).digest() if more else digest


def next_seal(seal: bytes, head: bytes, body: bytes) -> bytes:
    """What seals a blob or footer frame behind a frame with `seal`."""
    return hashlib.sha256(seal + head + body).digest()


def footer_content(digest: bytes, num_records: int, blobs: Sequence[BlobRef]) -> dict[str, Any]:
    """What the footer of a file with these records and blobs says."""
    return {
        "records": num_records,
        "last_sequence": num_records,
        "log_digest": digest.hex(),
        "blobs": [[blob.digest, blob.num_bytes] for blob in blobs],
    }


def _sealed(kind: bytes, seal: bytes, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    own = next_seal(seal, head, body)
    return prefix(kind, head) + head + body + own, own
