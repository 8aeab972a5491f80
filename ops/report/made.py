"""The facts of a log, from a file or from a run on its broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventlog.codec import Entry
from eventlog.log import EventLog
from leases.audit import Audit
from ops.auditing import Progress, audited_file, feed_run, opened_audit
from ops.compared import Result
from ops.placement.history import Starts
from ops.report.chronicle import Chronicle
from ops.report.facts import facts


def of_file(path: Path, progress: Progress, baseline: Result | None = None) -> dict[str, Any]:
    """Of an exported log; of a damaged one, what stands before the damage. Raises AtollError where
    it is no log of ours."""
    reader = _Reader()
    with audited_file(path, None, progress, reader.see) as audit:
        return reader.facts(audit, baseline)


async def of_run(
    run: str, log: EventLog, progress: Progress, baseline: Result | None = None
) -> dict[str, Any]:
    """Of a run's log as it stands now. Raises LogUnavailable."""
    reader = _Reader()
    with opened_audit(run, None, reader.see) as audit:
        await feed_run(audit, log, progress)
        return reader.facts(audit, baseline)


class _Reader:
    """What is kept of a log beside what the audit keeps."""

    def __init__(self) -> None:
        self._chronicle, self._starts = Chronicle(), Starts()

    def see(self, entry: Entry, void: str) -> None:
        self._chronicle.see(entry, void)
        self._starts.see(entry, void)

    def facts(self, audit: Audit, baseline: Result | None) -> dict[str, Any]:
        return facts(audit, self._chronicle, self._starts.found, baseline)
