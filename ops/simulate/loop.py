"""An event loop whose time is virtual, and processes in it that can be frozen as by SIGSTOP.

Nothing waits: when no callback is ready, time leaps to the next timer. Threads are none: what is
handed to an executor runs here, a moment later. So a simulated hour takes as long as its work, and
the same program with the same seed does the same things in the same order: callbacks in the order
in which they became ready, timers of one moment in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

THREAD_S = 0.002  # virtual time that work in a thread takes

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing is left that could ever happen: a deadlock of the simulation."""


class Process:
    """Tasks and timers that belong together. While `paused`, none of them runs; they queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.held: list[Call] = []

    def resume(self) -> None:
        """Go on (SIGCONT): what became due meanwhile runs now, in its order."""
        self.paused = False
        held, self.held = self.held, []
        for call in held:
            call.loop.ready(call)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that belongs to this process, and everything that it starts."""
        context = contextvars.Context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)


class Call:
    """A callback that is to run: asyncio's `Handle` and `TimerHandle`, as far as they are used."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context", "loop", "process")

    def __init__(
        self,
        loop: VirtualLoop,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self.loop, self._when, self.context = loop, when, context
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.process: Process | None = context.get(_PROCESS)
        self._cancelled = False

    def cancel(self) -> None:
        """Never run; what it would have needed is let go of at once."""
        self._cancelled = True
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        """The virtual time that it was set for."""
        return self._when


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` starts at 0 and moves only when nothing is ready."""

    _stopping: bool  # of BaseEventLoop: set by `stop`

    def __init__(self) -> None:
        super().__init__()
        self._now, self._num_timers = 0.0, 0
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def ready(self, call: Call) -> None:
        """Run it behind everything that is ready now."""
        self._calls.append(call)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Call:
        """See asyncio; a frozen process's callbacks wait."""
        context = contextvars.copy_context() if context is None else context
        call = Call(self, self._now, callback, args, context)
        self._calls.append(call)
        return call

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Call:
        """See asyncio."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Call:
        """See asyncio; a frozen process's timers fire when it goes on."""
        context = contextvars.copy_context() if context is None else context
        call = Call(self, when, callback, args, context)
        self._num_timers += 1
        heappush(self._timers, (when, self._num_timers, call))
        return call

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call later as part of the world, not of the process that asks for it."""
        self.call_at(self._now + delay_s, callback, *args, context=contextvars.Context())

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """See asyncio; the work runs in this thread, a moment of virtual time later."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(THREAD_S, work)
        return future

    def _run_once(self) -> None:
        """What `run_forever` does over and over, until `stop`. Raises Stuck."""
        calls = self._calls
        while not self._stopping:
            if not calls:
                self._leap()
            call = calls.popleft()
            callback, process = call.callback, call.process
            if callback is None:
                continue
            if process is not None and process.paused:
                process.held.append(call)
                continue
            try:
                call.context.run(callback, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                what = f"in the callback {callback!r}"
                self.call_exception_handler({"message": what, "exception": error})

    def _leap(self) -> None:
        """Let time pass until a timer is due, and make those of that moment ready."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
        if not timers:
            raise Stuck("no task can run and no timer is set")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._calls.append(heappop(timers)[2])
