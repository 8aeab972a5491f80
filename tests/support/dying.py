"""Coordinators that are killed at a marked point of their work, each in a process of its own.

`python -m tests.support.dying FOLDER` forks one for each of POINTS: on the log and the blobs that
lie in FOLDER/point, with scratch space of its own. It kills itself there with SIGKILL, in the
middle of the real code; what it left is for the test to go on from. Prints how each one ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eventlog.blobs import BlobRef, Progress
from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.dir_blobs import DirBlobs
from eventlog.file_log import FileLog
from eventlog.projector import Projection
from leases.table import LeaseTable
from outer import codecs, tensorfile
from outer.coordinator import Coordinator
from outer.workshop import Workshop
from tests.support.history import RUN

POINTS = (
    "between cut and merge",
    "during the merge",
    "while the update is stored",
    "between update and event",
    "while a snapshot is written",
    "while a snapshot is stored",
)
SPEED = 40.0  # of a dying coordinator's clock: it takes over soon


def die() -> None:
    """No cleanup, no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingLog:
    """A file's log whose writer dies right after one event is stored, or right before."""

    def __init__(self, log: FileLog, before: str, after: str) -> None:
        self._log, self._before, self._after = log, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, subject: str, payloads: Sequence[bytes], last: int) -> int:
        kinds = [_kind(subject, payload) for payload in payloads]
        if self._before in kinds:
            die()
        sequence = await self._log.append(subject, payloads, last)
        if self._after in kinds:
            die()
        return sequence


class DyingBlobs(DirBlobs):
    """A store whose user dies when half of a file of some name is in it."""

    name = ""

    async def put(self, source: Path, progress: Progress | None = None) -> BlobRef:
        if self.name and source.name.startswith(self.name):
            data = source.read_bytes()
            self.path.joinpath("parts", "half").write_bytes(data[: len(data) // 2])
            die()
        return await super().put(source, progress)


def _kind(subject: str, payload: bytes) -> str:
    envelope = decode(Record(1, subject, 0, payload)).envelope
    return envelope.type if envelope else ""


def _of_a_snapshot(call: tuple[Any, ...]) -> bool:
    return str(call[0]._path.name).startswith("snapshot-")


def _dying(method: Callable[..., Any], marked: Callable[[tuple[Any, ...]], bool], nth: int) -> Any:
    """The method, which dies before its nth call that is marked."""
    calls = [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += marked(arguments)
        if calls[0] == nth:
            die()
        return method(*arguments, **named)

    return call


def coordinator(folder: Path, scratch: str, point: str = "") -> Coordinator:
    """One on the log and blobs of a folder; it dies at `point`."""
    log, blobs = FileLog.open(folder / "log"), DyingBlobs(folder / "blobs")
    after = "round.closed" if point == "between cut and merge" else "?"
    before = "round.committed" if point == "between update and event" else "?"
    if point == "during the merge":  # the second of two tensors
        codecs.Writer.add_piece = _dying(codecs.Writer.add_piece, lambda _: True, 2)  # type: ignore
    if point == "while a snapshot is written":  # the third part of six
        tensorfile.Writer.put = _dying(tensorfile.Writer.put, _of_a_snapshot, 3)  # type: ignore
    stored = {"while the update is stored": "update-", "while a snapshot is stored": "snapshot-"}
    blobs.name = stored.get(point, "")
    (folder / scratch).mkdir()
    return Coordinator(
        DyingLog(log, before, after),  # type: ignore[arg-type]
        Projection(":memory:", [LeaseTable()], RUN),
        Workshop(blobs, folder / scratch),
        holder=scratch,
        clock=lambda: SPEED * time.monotonic(),
    )


def main(root: Path) -> None:
    ends = {}
    for point in POINTS:
        pid = os.fork()
        if not pid:
            asyncio.run(asyncio.wait_for(coordinator(root / point, "first", point).run(), 60))
            os._exit(0)
        ends[point] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
