"""Where a process stands, for whoever must find out why it hangs: SIGUSR2 writes the stack of every
thread to a file, at once, whatever the process is doing."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

NAME = "stacks-{}.txt"


def stacks_file(folder: Path, pid: int) -> Path:
    """Where the process `pid` writes its stacks; there from the moment on in which it can."""
    return folder / NAME.format(pid)


def write_stacks_on_request(folder: Path, pid: int) -> None:
    """From here on SIGUSR2 appends the stacks of this process, `pid`, to its file; those of earlier
    processes are removed. Where the file cannot be made, the signal does what it always does: what
    is wrong with the folder is for others to say."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(NAME.format("*")):
            old.unlink(missing_ok=True)
        file = stacks_file(folder, pid).open("w")  # kept open by the handler, for ever
    except OSError:
        return
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
