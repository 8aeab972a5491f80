"""What a site's work folder holds of a predecessor that was killed."""

from __future__ import annotations

from pathlib import Path

from eventlog.blobs import is_digest
from leases import retention
from leases.view import View


def sweep(folder: Path, view: View) -> None:
    """Remove deltas, whole or half written, and fetched blobs, but for those that lead to the
    newest version: these are taken up where they were left. A job that is killed once a night
    would otherwise fill its node's disk."""
    needed = retention.loaded(view.db) if view.exists() else {}
    for path in folder.glob("*"):
        name = path.name.removesuffix(".part")
        if name.startswith(("delta-", ".delta-")) or (is_digest(name) and name not in needed):
            path.unlink()
