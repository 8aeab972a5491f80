"""Leaf nodes are cut off: a reload ends the connections of clients who are let in no longer, but
not those of leaf nodes.

nats-server takes that from its system account only, where a server's own folder has a key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker import monitor
from broker.client import Outgoing
from broker.connection import connect
from broker.credentials import Credentials, write_secret
from broker.server import read_address
from eventlog.keys import Key

ADMIN_FILE = "admin.key"
_ASK_S = 5.0


def admin(folder: Path) -> str:
    """The public key of a server's administration; empty where it has none."""
    path = folder / ADMIN_FILE
    return Key.of_seed(path.read_text().strip()).public if path.exists() else ""


def make_admin(folder: Path) -> None:
    """Give a server's folder such a key, where it has none."""
    if not (folder / ADMIN_FILE).exists():
        write_secret(folder / ADMIN_FILE, Key.generate().seed + "\n")


def leaves(monitor_url: str) -> dict[int, str]:
    """The leaf nodes that are connected: the key of each, by its connection. Raises OSError."""
    found = json.loads(monitor.ask(f"{monitor_url}/connz?auth=1&limit=4096", 2.0))
    return {
        int(one["cid"]): str(one.get("authorized_user", ""))
        for one in found.get("connections") or []
        if one.get("kind") == "Leafnode"
    }


def kick_leaves(folder: Path, known: Collection[str]) -> int:
    """End the connections of leaf nodes with another key than those known, at the server that runs
    on `folder`; how many. Raises OSError, BrokerUnreachable, LinkDown."""
    address = read_address(folder)
    if address is None or not admin(folder):
        return 0
    monitor_url = f"http://127.0.0.1:{address['monitor_port']}"
    found = [number for number, key in leaves(monitor_url).items() if key not in known]
    if found:
        server_id = json.loads(monitor.ask(f"{monitor_url}/varz", 2.0))["server_id"]
        with ThreadPoolExecutor(1) as beside:  # whoever calls may have a loop of their own
            beside.submit(
                asyncio.run, _kick(folder, str(address["url"]), server_id, found)
            ).result()
    return len(found)


async def _kick(folder: Path, url: str, server_id: str, ids: list[int]) -> None:
    seed, ca = (folder / ADMIN_FILE).read_text().strip(), (folder / "ca.pem").read_text()
    identity = Credentials("operator", "admin", url, seed, ca)
    async with await connect(url, name="admin", identity=identity) as connection:
        for one in ids:
            asked = Outgoing(f"$SYS.REQ.SERVER.{server_id}.KICK", json.dumps({"cid": one}).encode())
            await connection.control.request(asked, timeout_s=_ASK_S)
