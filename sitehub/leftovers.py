"""A site's folder on this machine: whose it is, and what a predecessor has left there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eventlog.blobs import is_digest
from eventlog.errors import LockHeld
from eventlog.events import Token
from eventlog.locks import exclusive
from leases import retention
from leases.view import View


def locked(folder: Path, site: str) -> Any:
    """The lock of a site's folder on this machine, to be released. Raises LockHeld (R11)."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return exclusive(folder / "site", f"site {site}")
    except LockHeld as error:
        raise LockHeld(
            f"site {site} runs on this machine already ({folder}): a twin must wait; end that "
            "process first, or give this one another name"
        ) from error


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


def record(folder: Path, incarnation: Token, trainer_pid: int | None) -> None:
    """Who holds the lock, for the next one and for whoever looks after this machine."""
    part = folder / "site.json.part"
    part.write_text(json.dumps({"incarnation": incarnation, "trainer_pid": trainer_pid}))
    part.replace(folder / "site.json")
