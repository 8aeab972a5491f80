"""The hub's end of its trainer: starts it, listens to it, hands over commands.

The trainer connects to a unix socket of the hub; its end of stream is its death. Tensors pass as
files of the work folder, named in commands.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.config import RunConfig
from eventlog.events import DataShape
from sitehub.spawn import ONE, Ranks, TrainerHandle, socket_folder, spawn_trainer
from sitehub.wire import Message, WireInvalid, async_read, async_write

_END_S = 5.0  # how long a trainer told to exit may take


@dataclass(slots=True)
class Handover:
    """`on_message` gets every message; `on_gone` one line, once, when the trainer has ended."""

    folder: Path
    data: Path
    num_threads: int
    on_message: Callable[[Message], None]
    on_gone: Callable[[str], None]
    ranks: Ranks = ONE
    pid: int | None = None
    _sockets: Path = field(default_factory=lambda: socket_folder("atoll-hub-"))
    _server: asyncio.Server | None = None
    _writer: asyncio.StreamWriter | None = None
    _reader_task: asyncio.Task[None] | None = None
    _watch: asyncio.Task[None] | None = None
    _handle: TrainerHandle | None = None

    async def start(self, config: RunConfig, shape: DataShape) -> None:
        """Start a trainer; it reports `ready` when its model stands. Raises SpawnFailed."""
        await self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "trainer.json"
        settings.write_text(
            json.dumps({"config": config.model_dump(mode="json"), "data": shape.model_dump()})
        )
        path = self._sockets / "trainer"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, path)
        argv = ["--socket", path, "--data", self.data, "--config", settings]
        argv += ["--dir", self.folder, "--threads", self.num_threads]
        self._handle = await asyncio.to_thread(
            spawn_trainer,
            [str(part) for part in argv],
            self.folder / "trainer.log",
            ranks=self.ranks,
        )
        self.pid = self._handle.pid
        self._watch = asyncio.create_task(self._until_gone(self._handle))

    async def tell(self, command: Message) -> None:
        """Send one command; a trainer that is gone is reported by `on_gone`."""
        if self._writer is not None:
            with suppress(OSError):
                await async_write(self._writer, command)

    def kill(self) -> None:
        """End a trainer that hangs, at once; `on_gone` follows."""
        if self._handle is not None:
            self._handle.kill()

    async def stop(self) -> None:
        """End the trainer: told to exit, then killed."""
        handle, self._handle = self._handle, None
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if handle is not None:
            await self.tell({"do": "exit"})
            if not await asyncio.to_thread(handle.wait, _END_S):
                handle.kill()
            handle.close()
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self._writer = self._reader_task = self._server = self._watch = None

    async def close(self) -> None:
        await self.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._reader_task = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, WireInvalid):
            while (message := await async_read(reader)) is not None:
                self.on_message(message)

    async def _until_gone(self, handle: TrainerHandle) -> None:
        """The process's end is its death, whether or not it ever connected."""
        while handle.alive():
            await asyncio.sleep(0.2)
        if self._reader_task is not None:  # what it said last comes before its end
            await asyncio.wait({self._reader_task}, timeout=1.0)
        code = await asyncio.to_thread(handle.returncode)
        handle.close()
        self._handle = None
        how = f"exit code {code}" if code is not None else "no exit code"
        self.on_gone(
            f"the trainer (pid {handle.pid}) ended with {how}; see {self.folder}/trainer.log"
        )
