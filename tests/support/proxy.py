"""A TCP proxy before the broker that loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes both ways. `watch`: when a client's bytes hold it, they are still passed on,
    then `lose` takes effect: "link" cuts the connection without a word of the broker, "answers"
    swallows what the broker says for `silence_s`. Each of `num_losses` uses one up."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.watch = b""
        self.lose = "link"
        self.num_losses = 0
        self.num_lost = 0
        self.silence_s = 0.5
        self.num_seen = 0  # how often `counted` was in what clients sent
        self.counted = b""
        self.num_bytes = 0  # that passed, both ways
        self.num_up = 0  # of them from clients
        self.cuts: list[int] = []  # at so many bytes every connection is cut, rising
        self.num_cuts = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._writers.update(pair)
        muted = asyncio.Event()
        up = asyncio.ensure_future(self._up(reader, far_writer, muted))
        down = asyncio.ensure_future(self._down(far_reader, writer, muted))
        self._tasks.update((up, down))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        self._tasks.difference_update((up, down))
        for end in pair:
            end.transport.abort()
        self._writers.difference_update(pair)

    def cut(self) -> None:
        """Break every connection now."""
        for writer in self._writers:
            writer.transport.abort()

    def _count(self, data: bytes) -> None:
        self.num_bytes += len(data)
        if self.cuts and self.num_bytes >= self.cuts[0]:
            self.cuts.pop(0)
            self.num_cuts += 1
            self.cut()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            self.num_seen += data.count(self.counted) if self.counted else 0
            self.num_up += len(data)
            self._count(data)
            hit = bool(self.watch) and self.watch in data and self.num_lost < self.num_losses
            if hit:
                self.num_lost += 1
                muted.set()
            writer.write(data)
            await writer.drain()
            if hit and self.lose == "link":
                await asyncio.sleep(0.1)  # the broker acts on it; nobody hears of that
                return
            if hit:
                asyncio.get_running_loop().call_later(self.silence_s, muted.clear)

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            self._count(data)
            if not muted.is_set():
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy on a free port of this machine before the broker at `url`."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.relay, "127.0.0.1", 0)
    proxy.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await asyncio.sleep(0.01)
