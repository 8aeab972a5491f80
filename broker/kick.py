"""Connections are cut by the server's own administration: at once, and leaf nodes at all.

A reload ends the connections of clients who are let in no longer, but not those of leaf nodes, and
under a flood it takes seconds. nats-server takes the wish to end one connection from its system
account only, where a server's own folder has a key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from broker import monitor
from broker.client import Outgoing
from broker.connection import Connection, connect
from broker.credentials import Credentials
from broker.files import write_secret
from broker.server import read_address
from eventlog.keys import Key

ADMIN_FILE = "admin.key"
_ASK_S = 5.0

T = TypeVar("T")


def admin(folder: Path) -> str:
    """The public key of a server's administration; empty where it has none."""
    path = folder / ADMIN_FILE
    return Key.of_seed(path.read_text().strip()).public if path.exists() else ""


def make_admin(folder: Path) -> None:
    """Give a server's folder such a key, where it has none."""
    if not (folder / ADMIN_FILE).exists():
        write_secret(folder / ADMIN_FILE, Key.generate().seed + "\n")


def connections(monitor_url: str) -> list[Mapping[str, Any]]:
    """What a server says of those who are connected. Raises OSError."""
    found = json.loads(monitor.ask(f"{monitor_url}/connz?auth=1&limit=4096", 2.0))
    return list(found.get("connections") or [])


def key(connection: Mapping[str, Any]) -> str:
    """The key that a connection logged in with; empty where it has not yet."""
    return str(connection.get("authorized_user", ""))


class Administration:
    """The server's own way in, at the server that runs on `folder`. Whoever may have to cut off a
    flood holds it open: a full server lets nobody in. It has a loop of its own, as whoever calls
    may have one. Closed by its maker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection: Connection | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="administration", daemon=True)
        self._thread.start()

    def open(self) -> bool:
        """Connect, where that is not done; whether it is. Where the folder has no key of an
        administration, or no server runs on it, there is nothing to connect to. Raises
        BrokerUnreachable."""
        return self._wait(self._open())

    def cut_strangers(
        self, known: Collection[str], found: Iterable[Mapping[str, Any]] | None = None
    ) -> int:
        """End the connections with another key than those `known`; how many. `found`: what the
        server said of its connections just now. Raises OSError, BrokerUnreachable, LinkDown."""
        address, own = read_address(self._folder), admin(self._folder)
        if address is None or not own:
            return 0
        if found is None:
            found = connections(f"http://127.0.0.1:{address['monitor_port']}")
        ids = [int(one["cid"]) for one in found if key(one) not in {"", own, *known}]
        if ids:
            self._wait(self._cut(ids))
        return len(ids)

    def close(self) -> None:
        if self._connection is not None:
            self._wait(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> bool:
        address = read_address(self._folder)
        if self._connection is None and address is not None and admin(self._folder):
            seed = (self._folder / ADMIN_FILE).read_text().strip()
            ca, url = (self._folder / "ca.pem").read_text(), str(address["url"])
            identity = Credentials("operator", "admin", url, seed, ca)
            self._connection = await connect(url, name="admin", identity=identity)
        return self._connection is not None

    async def _cut(self, ids: Iterable[int]) -> None:
        if not await self._open() or self._connection is None:
            return
        link, server_id = self._connection.control, self._connection.server_id
        asked = (
            Outgoing(f"$SYS.REQ.SERVER.{server_id}.KICK", json.dumps({"cid": one}).encode())
            for one in ids
        )
        await asyncio.gather(*(link.request(one, timeout_s=_ASK_S) for one in asked))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
