"""Every operating error of the log and its blobs, in one tree.

AtollError                  a person reads its text as one line: what, to what, what to do
├── LogError
│   ├── RunUnknown          the broker or folder holds no such run
│   ├── Conflict            an append's expectation does not hold: somebody else wrote
│   ├── LogUnavailable      the broker does not answer; try again
│   └── LogDamaged          R19: a gap, a rewritten or a vanished event
├── LockHeld                another process uses this file or folder; temporary
├── ExtraMissing            what was asked for needs an optional package that is not installed
├── EventInvalid            a payload that is no event of ours (the fold voids it)
└── BlobError
    ├── BlobMissing         no complete blob of that digest
    ├── BlobDamaged         bytes differ from the digest that names them
    │   └── BlobTooLarge    it is longer than it was said to be, and was not fetched
    └── BlobUnavailable     the store does not answer; try again
"""

from __future__ import annotations


class AtollError(Exception):
    """An operating condition a person can act on; its text is one clear line."""


class LogError(AtollError):
    """A condition of the log."""


class RunUnknown(LogError):
    """There is no log of that run where one looked."""


class Conflict(LogError):
    """The last sequence of the subject is not the expected one; nothing was written.

    `actual` is the subject's last sequence as far as known (0: no event yet).
    """

    def __init__(self, subject: str, expected: int, actual: int) -> None:
        super().__init__(
            f"append to {subject!r} expected its last sequence to be {expected}, it is {actual}: "
            "another writer was faster; read on and decide again"
        )
        self.subject, self.expected, self.actual = subject, expected, actual


class LogUnavailable(LogError):
    """The log cannot be reached now. Nothing is known about an append in flight."""


class LogDamaged(LogError):
    """R19: the log is not what it was, from `sequence` on. Nothing may be skipped."""

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(f"the log is damaged at sequence {sequence}: {what}")
        self.sequence, self.what = sequence, what


class LockHeld(AtollError):
    """Another process holds what only one may use at a time."""


class ExtraMissing(AtollError):
    """What this needs is an optional part of the installation."""


class EventInvalid(AtollError):
    """A payload that cannot be read as an event; the text says why."""


class BlobError(AtollError):
    """A condition of the blob store."""


class BlobMissing(BlobError):
    """No complete blob of that digest is in the store."""


class BlobDamaged(BlobError):
    """The stored bytes do not have the digest that names them."""


class BlobTooLarge(BlobDamaged):
    """The stored blob is longer than whoever asks for it takes; nothing of it was fetched."""

    def __init__(self, digest: str, num_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"blob {digest} has {num_bytes:,} bytes, at most {max_bytes:,} are taken of it; it is "
            "not fetched"
        )


class BlobUnavailable(BlobError):
    """The blob store cannot be reached now."""
