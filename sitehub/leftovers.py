"""What a site's folder holds of a predecessor that was killed."""

from __future__ import annotations

import json
from pathlib import Path

from eventlog.blobs import is_digest
from eventlog.events import Token
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


def recorded(folder: Path) -> Token | None:
    """The incarnation that held the lock of a site's folder before us (R11)."""
    try:
        sequence, name = json.loads((folder / "site.json").read_text())["incarnation"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (int(sequence), str(name))
