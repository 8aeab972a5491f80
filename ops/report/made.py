"""The facts of a log, from a file or from a run on its broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventlog.log import EventLog
from ops.auditing import Progress, audited_file, feed_run, opened_audit
from ops.report.chronicle import Chronicle
from ops.report.facts import facts


def of_file(path: Path, progress: Progress) -> dict[str, Any]:
    """Of an exported log; of a damaged one, what stands before the damage. Raises AtollError where
    it is no log of ours."""
    chronicle = Chronicle()
    with audited_file(path, None, progress, chronicle.see) as audit:
        return facts(audit, chronicle)


async def of_run(run: str, log: EventLog, progress: Progress) -> dict[str, Any]:
    """Of a run's log as it stands now. Raises LogUnavailable."""
    chronicle = Chronicle()
    with opened_audit(run, None, chronicle.see) as audit:
        await feed_run(audit, log, progress)
        return facts(audit, chronicle)
