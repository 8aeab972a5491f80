"""Who floods the broker is not let in for a while, so that the others get on.

nats-server limits sizes and numbers of connections, but no rates; and all writers of a stream share
one queue, which one of them can fill. What a site of a run sends in earnest is few messages: events
by the second, blobs in chunks of 2 MiB. So a site far above that is suspended, longer each time,
and the broker's own record of its connections is what it is judged by.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker import kick, monitor
from broker.deployment import read_users, signal_reload, write_users
from broker.errors import BrokerUnreachable, LinkDown
from broker.production import USERS_FILE
from broker.roles import NAMED
from broker.server import BrokerServer
from broker.settings import ServerSettings

MAX_PER_S = 1000.0  # messages; at 2 MiB a chunk that is 2 GB/s of blobs
FIRST_S, LONGEST_S = 300.0, 3600.0


@dataclass(slots=True)
class Guard:
    """Pure: given what the broker says of its connections, who is suspended, and until when.

    `watched`: keys that are judged. `suspended`: by key, until when on the caller's clock.
    """

    watched: Collection[str]
    max_per_s: float = MAX_PER_S
    suspended: dict[str, float] = field(default_factory=dict)
    _times: Counter[str] = field(default_factory=Counter)
    _seen: dict[int, int] = field(default_factory=dict)  # messages so far, by connection
    _looked: float | None = None

    def look(self, connections: list[Mapping[str, Any]], now: float) -> dict[str, float]:
        """Rates (messages a second) of those who are suspended from now on; whose time is over is
        let in again. Called about twice a second."""
        since = now - self._looked if self._looked is not None else None
        rates: Counter[str] = Counter()
        for one in connections:
            num = int(one["in_msgs"])
            rates[str(one.get("authorized_user", ""))] += num - self._seen.get(int(one["cid"]), 0)
        self._seen = {int(one["cid"]): int(one["in_msgs"]) for one in connections}
        self._looked = now
        self.suspended = {key: until for key, until in self.suspended.items() if until > now}
        if since is None or since <= 0:
            return {}
        found = {
            key: num / since
            for key, num in rates.items()
            if key in self.watched and key not in self.suspended and num / since > self.max_per_s
        }
        for key in found:
            self.suspended[key] = now + min(LONGEST_S, FIRST_S * 2 ** self._times[key])
            self._times[key] += 1
        return found


class Watch:
    """The guard of a configured server's folder: looks, and has the server act on it."""

    @staticmethod
    def is_due(settings: ServerSettings) -> bool:
        """Whether a server has users to judge: a leaf node has none, the broker judges it."""
        return settings.written and (settings.store_dir / USERS_FILE).exists()

    def __init__(self, server: BrokerServer) -> None:
        self._server, self._folder = server, server.settings.store_dir
        self._guard = Guard(())
        self._out: frozenset[str] = frozenset()

    def look(self, now: float) -> list[str]:
        """One look; what there is to say. Raises OSError where the server does not answer."""
        url = f"{self._server.monitor_url}/connz?auth=1&limit=4096"
        connections = json.loads(monitor.ask(url, 2.0)).get("connections") or []
        users = read_users(self._folder)
        labels = {user.public: user.label for user in users}
        self._guard.watched = {user.public for user in users if user.role in NAMED}
        said = [
            f"{labels[key]} floods the broker ({rate:,.0f} messages a second): not let in for "
            f"{self._guard.suspended[key] - now:.0f} s"
            for key, rate in self._guard.look(connections, now).items()
        ]
        if (out := frozenset(self._guard.suspended)) != self._out:
            self._out = out
            write_users(self._folder, [user for user in users if user.public not in out])
            signal_reload(self._server.pid)
        with contextlib.suppress(BrokerUnreachable, LinkDown):  # the next look is soon
            kick.kick_leaves(self._folder, {user.public for user in users} - out)
        return said
