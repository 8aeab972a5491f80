"""The kill switch: while a file is there, the agents here ask the scheduler nothing.

`atoll place halt` makes it, `atoll place go` removes it; whoever cannot run atoll may make the file
itself. `cancel` in it: the jobs of our agents here are cancelled first, waiting or running.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Halt:
    """Why everything stands still. cancel: jobs are to go as well."""

    reason: str
    cancel: bool = False


def path(home: Path) -> Path:
    """The file, by ATOLL_HOME."""
    return home / "placement" / "halt"


def halted(home: Path, stop_file: str = "") -> Halt | None:
    """Whether the agents here are to keep still. A file that cannot be read as ours halts too."""
    here = path(home)
    if here.exists():
        try:
            said = json.loads(here.read_text())
            return Halt(str(said["reason"]), said.get("cancel") is True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Halt(f"{here} is there")
    if stop_file and Path(stop_file).exists():
        return Halt(f"{stop_file} is there")
    return None


def halt(home: Path, reason: str, cancel: bool) -> Path:
    """Make the file; what it says takes the place of what it said."""
    here = path(home)
    here.parent.mkdir(parents=True, exist_ok=True)
    said = {"reason": reason, "cancel": cancel, "at": round(time.time())}
    beside = here.with_suffix(".new")
    beside.write_text(json.dumps(said) + "\n")
    beside.replace(here)
    return here


def go(home: Path) -> bool:
    """Remove it; whether it was there."""
    here = path(home)
    was = here.exists()
    here.unlink(missing_ok=True)
    return was
