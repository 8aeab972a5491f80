"""Signals of processes that leave well: the first asks, the second of its kind insists."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from ops import exits

ASKS = {
    signal.SIGINT: ("drained", "interrupted at the keyboard", exits.INTERRUPTED),
    signal.SIGTERM: ("walltime", "told to end by SIGTERM", exits.TEMPORARY),
    signal.SIGUSR1: ("walltime", "told by SIGUSR1 that its job ends soon", exits.TEMPORARY),
}


def on_request(leave: Callable[[str, str, int], None]) -> None:
    """Call `leave(code, reason, exit code)` at the first of these signals, within the running
    loop; a second one ends the process at once."""
    loop, asked = asyncio.get_running_loop(), []

    def handle(number: signal.Signals) -> None:
        code, reason, exit_code = ASKS[number]
        if number in asked:
            os._exit(exit_code)
        asked.append(number)
        leave(code, reason, exit_code)

    for number in ASKS:
        loop.add_signal_handler(number, handle, number)


def noted() -> list[int]:
    """The signals to end that have come since, for who looks now and then and has no loop. What
    they raised could land within anything, and come out of it as another error. A second one of its
    kind ends the process at once."""
    found = list[int]()

    def note(number: int, _: object) -> None:
        if number in found:
            os._exit(128 + number)
        found.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return found


def clean_up_on_termination() -> None:
    """SIGTERM ends this process by way of its `finally` blocks, so that what it put into temporary
    folders, and whom it started, goes with it; the exit code is a shell's for SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
