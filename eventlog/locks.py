"""Locks between processes on one machine, for what only one of them may use at a time."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from eventlog.errors import LockHeld


def exclusive(path: Path, what: str) -> FileLock:
    """The lock that goes with `path` (a file beside it), held until released or the process ends.

    Raises LockHeld at once where somebody else, this process included, holds it.
    """
    lock = FileLock(f"{path}.lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockHeld(
            f"{what} {path} is in use by another process; wait for its end or stop it"
        ) from error
    return lock
