"""Fetched blobs on this machine's disk, each in a file named by its digest: a cache that is not
trusted further than its disk.

What this process fetched was checked as it came. What it finds there, a predecessor fetched, weeks
ago perhaps: it is hashed once, when it is first used, and fetched again where it is not what its
name says. So nothing is hashed twice on the way to a merge. What rots later shows as a file that
cannot be merged or a digest that differs; then `weed` tells whether a file was to blame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.blobs import BlobStore, digest_file, is_digest


@dataclass(slots=True)
class Shelf:
    """`say` hears of each file that had to be thrown away."""

    blobs: BlobStore
    folder: Path
    say: Callable[[str], None] = lambda _: None
    _sound: set[str] = field(default_factory=set)  # files that this process fetched or hashed
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def fetch(self, name: str, max_bytes: int | None = None, *, check: bool = True) -> Path:
        """The blob as a local file. Without `check` a file that is there already is not hashed:
        who reads it compares digests of its content. Raises as `BlobStore.get`."""
        path = self.folder / name
        async with self._locks.setdefault(name, asyncio.Lock()):  # two write no file at once
            if check and name not in self._sound and path.exists():
                await self._weed(path)
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                await self.blobs.get(name, path, max_bytes=max_bytes)
                self._sound.add(name)
        return path

    async def weed(self, names: Iterable[str] | None = None) -> bool:
        """Throw away those of these files, or of all, that are not what their names say; whether
        there was one."""
        if names is None:
            names = [one.name for one in self.folder.glob("*") if is_digest(one.name)]
        paths = [path for name in sorted(names) if (path := self.folder / name).exists()]
        return not all([await self._weed(path) for path in paths])

    def drop(self, names: Iterable[str]) -> None:
        """Remove files, and what is half fetched of them."""
        for name in names:
            self._sound.discard(name)
            if name in self._locks and not self._locks[name].locked():
                del self._locks[name]
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / f"{name}.part").unlink(missing_ok=True)

    async def _weed(self, path: Path) -> bool:
        """Whether a file is what its name says; it is gone where it is not."""
        if (await asyncio.to_thread(digest_file, path)).digest == path.name:
            self._sound.add(path.name)
            return True
        self.say(f"{path} has other bytes than its name says: its disk errs; it is fetched again")
        self.drop([path.name])
        return False
