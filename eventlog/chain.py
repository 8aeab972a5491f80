"""The running digest of a log (R18): two logs with equal digests hold the same history.

D(0) = sha256(FORMAT || run), D(i) = sha256(D(i-1) || frame of record i), where the frame holds
sequence, broker time, subject and payload in a fixed binary layout, so that every byte counts and
no two records share a frame.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from datetime import UTC, datetime

FORMAT = b"atoll log 1\n"
_HEAD = struct.Struct(">QqHI")  # sequence, time_ns, len(subject), len(payload)


@dataclass(frozen=True, slots=True)
class Record:
    """One event as the log holds it. `subject` is relative to the run: `coordinator`,
    `operator`, `planner`, `site.NAME` or `agent.NAME`; `time_ns` is the broker's, in ns UTC."""

    sequence: int
    subject: str
    time_ns: int
    payload: bytes

    def frame(self) -> bytes:
        """The record in its fixed layout: 22 bytes of head, then subject and payload."""
        subject = self.subject.encode()
        head = _HEAD.pack(self.sequence, self.time_ns, len(subject), len(self.payload))
        return head + subject + self.payload

    def digest(self) -> str:
        """Digest of this record alone (hex), by which a position recognises its event (R19)."""
        return hashlib.sha256(self.frame()).hexdigest()

    def time(self) -> str:
        """The broker's time, ISO 8601 UTC with microseconds."""
        moment = datetime.fromtimestamp(self.time_ns // 1_000_000_000, UTC)
        micros = self.time_ns % 1_000_000_000 // 1000
        return moment.replace(microsecond=micros).isoformat(timespec="microseconds")


def start(run: str) -> bytes:
    """D(0) of a run's log: 32 bytes."""
    return hashlib.sha256(FORMAT + run.encode()).digest()


def extend(digest: bytes, record: Record) -> bytes:
    """D(i) from D(i-1) and record i: 32 bytes."""
    subject, payload = record.subject.encode(), record.payload
    head = _HEAD.pack(record.sequence, record.time_ns, len(subject), len(payload))
    return hashlib.sha256(b"".join((digest, head, subject, payload))).digest()


def unpack_head(head: bytes) -> tuple[int, int, int, int]:
    """(sequence, time_ns, subject bytes, payload bytes) of a frame's first HEAD_BYTES."""
    sequence, time_ns, num_subject, num_payload = _HEAD.unpack(head)
    return sequence, time_ns, num_subject, num_payload


HEAD_BYTES = _HEAD.size
