"""A snapshot that is written while the next merge may begin.

The state is not copied, which would double the memory: a merge waits before it changes a tensor
until the snapshot holds that tensor. Both go through the tensors in the same order, so the merge
follows behind, and mostly finds everything written.
"""

from __future__ import annotations

import threading
from pathlib import Path

from outer.versions import OuterState, save_snapshot


class Copying:
    """One snapshot under way. `write` in one thread, `wait` in another."""

    def __init__(self, state: OuterState) -> None:
        self._state, self._written, self._over = state, set[str](), False
        self._changed = threading.Condition()

    def write(self, path: Path) -> None:
        """Write the state to `path`, durably. Raises OSError."""
        save_snapshot(self._state, path, self._note)

    def wait(self, name: str) -> None:
        """Return when the tensor may be changed: it is written, or nothing will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or name in self._written)

    def end(self) -> None:
        """Nobody waits from now on. Where `write` has not ended well, its file is not to be
        used."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _note(self, name: str) -> None:
        with self._changed:
            self._written.add(name)
            self._changed.notify_all()
