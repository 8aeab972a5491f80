"""An event loop whose time is virtual, and processes in it that can be frozen as by SIGSTOP.

Nothing waits: when no callback is ready, time leaps to the next timer. Threads are none: what is
handed to an executor runs here, a moment later. So a simulated hour takes as long as its work, and
the same program with the same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, cast

THREAD_S = 0.002  # virtual time that work in a thread takes

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing is left that could ever happen: a deadlock of the simulation."""


class Process:
    """Tasks and timers that belong together. While `paused`, none of them runs; they queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self._backlog: list[_Guard] = []

    def hold(self, guard: _Guard) -> None:
        """Keep a callback for later."""
        self._backlog.append(guard)

    def resume(self) -> None:
        """Go on (SIGCONT): what became due meanwhile runs now, in its order."""
        self.paused = False
        held, self._backlog = self._backlog, []
        for guard in held:
            guard.requeue()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that belongs to this process, and everything that it starts."""
        context = contextvars.Context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)


class _Guard:
    """A callback of a process, which waits while that is frozen."""

    __slots__ = ("_args", "_callback", "_context", "_loop", "_process", "handle")

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._loop, self._process, self._context = loop, process, context
        self._callback, self._args = callback, args
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self.handle is not None and self.handle.cancelled():
            return
        if self._process.paused:
            self._process.hold(self)
        else:
            self._callback(*self._args)

    def requeue(self) -> None:
        """Run with the callbacks that are ready now, unless cancelled by then."""
        self._loop.soon(self, self._context)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves only when nothing is ready."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(cast(selectors.BaseSelector, _Leaper(self)))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def leap(self, seconds: float | None) -> None:
        """Move time on. Raises Stuck where no timer is set."""
        if seconds is None:
            raise Stuck("no task can run and no timer is set")
        self._now += seconds

    def soon(self, callback: Callable[[], Any], context: contextvars.Context) -> asyncio.Handle:
        """`call_soon`, whatever process the context is of."""
        return super().call_soon(callback, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """See asyncio; a frozen process's callbacks wait."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        guard = _Guard(self, process, callback, args, context)
        guard.handle = super().call_soon(guard, context=context)
        return guard.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio; a frozen process's timers fire when it goes on."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        guard = _Guard(self, process, callback, args, context)
        timer = super().call_at(when, guard, context=context)
        guard.handle = timer
        return timer

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call later as part of the world, not of the process that asks for it."""
        super().call_at(self._now + delay_s, callback, *args, context=contextvars.Context())

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


class _Leaper(selectors.BaseSelector):
    """A selector without files: to wait is to let virtual time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, -1, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.leap(timeout)
        return []

    def get_map(self) -> Any:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[fileobj]
