"""Linux: have a child process end with its parent, whatever ends the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Prctl = Callable[[int, int], int]


def death_signal() -> Prctl | None:
    """prctl(2), loaded before the fork: between fork and exec nothing may be loaded. None
    where the system has none."""
    if not sys.platform.startswith("linux"):
        return None
    prctl: Prctl = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


def arm(prctl: Prctl, parent: int) -> None:
    """To run in the child: SIGTERM me when my parent dies; if it has died already, end now."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
