"""Work beside the log, one task a name, whose blob store may not answer for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from eventlog.errors import BlobError

RETRY_S = 1.0  # between attempts at work that needs a store which does not answer


@dataclass(slots=True)
class Jobs:
    """`say` tells a person of attempts that failed; `notify` is called whenever one has ended."""

    say: Callable[[str], None]
    notify: Callable[[], None]
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _ended: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start the work unless work of that name is under way."""
        if name in self.tasks:
            work.close()
            return
        task = asyncio.create_task(self._tried(name, work), name=name)
        task.add_done_callback(self._note)
        self.tasks[name] = task

    def reap(self) -> None:
        """Collect what has ended. A store that does not answer is asked again; anything else that
        went wrong is raised."""
        ended, self._ended = self._ended, []
        for task in ended:
            self.tasks.pop(task.get_name(), None)
        for task in ended:
            task.result()

    async def stop(self) -> None:
        """Cancel everything, and wait for it."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def _note(self, task: asyncio.Task[None]) -> None:
        self._ended.append(task)
        self.notify()

    async def _tried(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BlobError as error:
            self.say(f"{name}: {str(error).removesuffix('; try again')}; trying again")
            await asyncio.sleep(RETRY_S)
