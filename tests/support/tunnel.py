"""An HTTP proxy that does CONNECT and nothing else, as centres have them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Tunnel:
    """`url` for HTTPS_PROXY; `asked`: the targets of all tunnels so far."""

    def __init__(self) -> None:
        self.url, self.asked = "", list[str]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, to the end of its tunnel."""
        head = (await reader.readuntil(b"\r\n\r\n")).split()
        method, target = head[0].decode(), head[1].decode()
        if method != "CONNECT":
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            return writer.close()
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        there, to_there = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, to_there), _copy(there, writer), return_exceptions=True)
        return None


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(64 << 10):
            target.write(data)
            await target.drain()
    target.close()


@contextlib.asynccontextmanager
async def tunnel() -> AsyncIterator[Tunnel]:
    """A proxy that runs until the end of the block."""
    made = Tunnel()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
