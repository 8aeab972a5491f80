"""A log in one file, in the layout of `eventlog.frames`, without a footer while it is written."""

from __future__ import annotations

import logging
import os
import time
from array import array
from asyncio import timeout
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from eventlog import frames
from eventlog.chain import Record, extend
from eventlog.dir_blobs import sync_directory
from eventlog.errors import LogDamaged, LogError, LogUnavailable
from eventlog.local_log import LocalLog
from eventlog.locks import exclusive
from eventlog.scanner import Placed, Scanner, open_file

POLL_S = 0.2  # how often a reader looks for what another process has written

logger = logging.getLogger(__name__)


class FileLog(LocalLog):
    """An `EventLog` in a file: one writer, which holds a lock, and any number of readers.

    An append is one write and one fsync, and it is acknowledged after both. What a crash left of an
    append is cut back when the file is opened for writing again: an append stands wholly or not
    at all, because only its last record is sealed as last (see `eventlog.frames`). Anything else
    that does not verify is damage (R19) and is never cut. Opening verifies the whole file; the
    index takes 16 bytes an event.
    """

    @classmethod
    def create(cls, path: Path, run: str, clock_ns: Callable[[], int] = time.time_ns) -> FileLog:
        """A new, empty log, open for writing. Raises LockHeld; LogError where the file exists."""
        lock = exclusive(path, "the log file")
        try:
            if path.exists():
                raise LogError(f"{path} exists already; open it, or choose another name")
            part = path.with_name(path.name + ".part")
            with part.open("wb") as file:
                file.write(frames.pack_header(run))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            sync_directory(path.parent)
            return cls(path, lock, clock_ns)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(
        cls, path: Path, read_only: bool = False, clock_ns: Callable[[], int] = time.time_ns
    ) -> FileLog:
        """An existing log. A sealed one (an export) can only be opened `read_only`.

        Raises RunUnknown, LockHeld, LogDamaged, and AtollError where it is no atoll log.
        """
        if read_only:
            return cls(path, None, clock_ns)
        open_file(path).close()
        lock = exclusive(path, "the log file")
        try:
            return cls(path, lock, clock_ns)
        except BaseException:
            lock.release()
            raise

    def __init__(self, path: Path, lock: FileLock | None, clock_ns: Callable[[], int]) -> None:
        """Use `create` or `open`."""
        self.path = path
        self._lock = lock
        self._file = open_file(path)
        try:
            self._scanner = Scanner(self._file, path)
            super().__init__(self._scanner.run, clock_ns)
            self._ends = array("Q", [self._scanner.offset])  # [i]: behind the frame of record i
            self._digest = self._scanner.digest  # D of the last record of the last whole append
            self._scan()
            self._writer = -1 if lock is None else self._open_for_writing()
        except BaseException:
            self._file.close()
            raise

    @property
    def read_only(self) -> bool:
        """Whether this object may not append."""
        return self._lock is None

    @property
    def sealed(self) -> bool:
        """Whether the file has its footer: nothing can follow, and all of it is proven whole."""
        return self._scanner.end == "footer"

    async def append(self, subject: str, payloads: Sequence[bytes], expected_last: int) -> int:
        """See `EventLog.append`. Raises LogError where the log is open for reading only."""
        if self.read_only and not self._closed:
            raise LogError(f"{self.path} is open for reading only; nothing can be appended")
        return await super().append(subject, payloads, expected_last)

    async def close(self) -> None:
        """See `EventLog.close`; releases the writer's lock."""
        self._let_go()
        await super().close()

    async def seal(self) -> None:
        """Write the footer, which makes the file an export, and close the log."""
        self._check_open()
        if self.read_only:
            raise LogError(f"{self.path} is open for reading only; it cannot be sealed")
        self._write(frames.pack_footer(self._digest, self._digest, self._index.num_records, []))
        await self.close()

    def _store(self, records: list[Record]) -> None:
        parts, digest, ends = [], self._digest, [self._ends[-1]]
        for number, record in enumerate(records, start=1):
            digest = extend(digest, record)
            parts.append(frames.pack_record(record, digest, more=number < len(records)))
            ends.append(ends[-1] + len(parts[-1]))
        self._write(b"".join(parts))
        self._digest = digest
        self._ends.extend(ends[1:])

    def _load(self, sequences: Sequence[int]) -> list[Record]:
        records = []
        for sequence in sequences:
            begin, end = self._ends[sequence - 1], self._ends[sequence]
            data = os.pread(self._file.fileno(), end - begin, begin)
            records.append(frames.parse_record(data, sequence))
        return records

    async def _wait(self) -> None:
        if not self.read_only or self.sealed:
            await super()._wait()
            return
        try:
            async with timeout(POLL_S):
                await super()._wait()
        except TimeoutError:
            return

    def _refresh(self) -> None:
        if self.read_only and not self.sealed:
            self._scan()

    def _scan(self) -> None:
        """Index the whole appends that the file holds behind those known."""
        pending: list[Placed] = []  # of an append whose last record was not seen yet
        for item in self._scanner.frames():
            if not isinstance(item, Placed):
                continue
            pending.append(item)
            if not item.more:
                for placed in pending:
                    self._index.add(placed.record.subject)
                    self._ends.append(placed.end)
                pending, self._digest = [], self._scanner.digest

    def _open_for_writing(self) -> int:
        """A handle to append with, behind the last whole append."""
        if self.sealed:
            raise LogError(f"{self.path} is sealed; open it for reading only")
        if self._scanner.blobs:
            raise LogDamaged(self._index.num_records + 1, f"the end of export {self.path} is gone")
        handle = os.open(self.path, os.O_RDWR)
        end, size = self._ends[-1], os.fstat(handle).st_size
        if end < size:
            logger.warning(
                "%s: an append that was cut off by a crash is removed (%d bytes behind event %d)",
                self.path,
                size - end,
                self._index.num_records,
            )
            os.ftruncate(handle, end)
            os.fsync(handle)
        return handle

    def _write(self, data: bytes) -> None:
        """Write behind the last append, durably. After a failure nobody knows what the disk has,
        so the log closes; opening it again finds out."""
        view, offset = memoryview(data), self._ends[-1]
        try:
            while view:
                written = os.pwrite(self._writer, view, offset)
                view, offset = view[written:], offset + written
            os.fsync(self._writer)
        except OSError as error:
            self._let_go()
            self._wake()
            raise LogUnavailable(
                f"{self.path} cannot be written ({error}); mend that and open the log again"
            ) from error

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._file.close()
        if self._lock is not None:
            os.close(self._writer)
            self._lock.release()
