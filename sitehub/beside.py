"""What a trainer does beside training: one thread, one job after the other.

A job may leave something to be done while training stands still between two of its steps. That is
kept here until the training thread comes for it; where that waits for a command, it is woken.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

Rest = Callable[[], None]
Job = Callable[[], Rest | None]

_NICER = 5  # of a thread that yields: where both want the same core, training goes first


class Beside:
    """`wake`: called, on the other thread, when something is left to be done; `broken`: with what
    a job raised, after which nothing here is to be trusted. `yields`: training goes on meanwhile,
    so its thread goes first; where it waits for these jobs instead, they are not to be slow."""

    def __init__(
        self,
        wake: Callable[[], None],
        broken: Callable[[BaseException], None],
        *,
        yields: bool = True,
    ) -> None:
        self._wake, self._broken = wake, broken
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._left: queue.SimpleQueue[Rest] = queue.SimpleQueue()
        self._yields = yields
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, job: Job) -> None:
        """Have a job done, after those before it."""
        self._jobs.put(job)

    def has_left(self) -> bool:
        """Whether finished jobs have left something to be done."""
        return not self._left.empty()

    def finish(self) -> None:
        """Do what finished jobs have left to the training thread, which calls this."""
        while not self._left.empty():
            self._left.get()()

    def wait(self) -> None:
        """Wait until every job is done, and finish them."""
        self._jobs.join()
        self.finish()

    def _run(self) -> None:
        if self._yields and hasattr(os, "setpriority"):
            own = threading.get_native_id()
            now = os.getpriority(os.PRIO_PROCESS, own)
            os.setpriority(os.PRIO_PROCESS, own, min(now + _NICER, 19))
        while True:
            job = self._jobs.get()
            try:
                rest = job()
            except BaseException as error:
                self._broken(error)
                rest = None
            if rest is not None:
                self._left.put(rest)
            self._jobs.task_done()
            if rest is not None:
                self._wake()
