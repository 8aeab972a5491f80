"""Who floods the broker is not let in for a while, so that the others get on.

nats-server limits sizes and numbers of connections, but no rates; and all writers of a stream share
one queue, which one of them can fill. What fills it is messages, each of which is synced by itself:
the disk does a few hundred to a few thousand a second. A site of a run sends in earnest a few
events a second, and blobs in chunks of 2 MiB, which its link bounds. So a message is free that
moves a MiB; a site that sends many others is cut off and suspended, longer each time; and the
broker's own record of its connections is what it is judged by.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker import kick
from broker.errors import DeploymentInvalid
from broker.node import read_users, signal_reload, write_users
from broker.production import BURST, MAX_PER_S, USERS_FILE
from broker.roles import NAMED, User
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.errors import AtollError

FREE_BYTES = 1 << 20
FIRST_S, LONGEST_S = 300.0, 3600.0
LOOK_S, AGAIN_S = 0.25, 0.05  # between two looks; while somebody who is out still comes
_RETRY_S = 5.0  # after the server could not be asked to cut somebody off


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the broker counted so far of a connection, or of a user since the last look."""

    messages: int = 0
    moved_bytes: int = 0  # both ways

    @classmethod
    def by(cls, connection: Mapping[str, Any]) -> _Sent:
        moved = int(connection.get("in_bytes", 0)) + int(connection.get("out_bytes", 0))
        return cls(int(connection["in_msgs"]), moved)

    def __add__(self, other: _Sent) -> _Sent:
        return _Sent(self.messages + other.messages, self.moved_bytes + other.moved_bytes)

    def __sub__(self, other: _Sent) -> _Sent:
        return _Sent(self.messages - other.messages, self.moved_bytes - other.moved_bytes)

    @property
    def counted(self) -> float:
        """Messages that count against their sender."""
        return max(0.0, self.messages - self.moved_bytes / FREE_BYTES)


@dataclass(slots=True)
class Guard:
    """Pure: given what the broker says of its connections, who is suspended, and until when.

    `watched`: keys that are judged: MAX_PER_S messages a second, and BURST beyond it at a time.
    `suspended`: by key, until when on the caller's clock.
    """

    watched: Collection[str]
    max_per_s: float = MAX_PER_S
    burst: float = BURST
    suspended: dict[str, float] = field(default_factory=dict)
    _times: Counter[str] = field(default_factory=Counter)
    _seen: dict[int, _Sent] = field(default_factory=dict)  # so far, by connection
    _over: dict[str, float] = field(default_factory=dict)  # messages beyond the rate, by key
    _looked: float | None = None

    def look(self, connections: list[Mapping[str, Any]], now: float) -> dict[str, float]:
        """Rates (messages a second since the last look) of those who are suspended from now on;
        whose time is over is let in again."""
        since = now - self._looked if self._looked is not None else 0.0
        sent: dict[str, _Sent] = {}
        for one in connections:
            new = _Sent.by(one) - self._seen.get(int(one["cid"]), _Sent())
            sent[kick.key(one)] = sent.get(kick.key(one), _Sent()) + new
        self._seen = {int(one["cid"]): _Sent.by(one) for one in connections}
        self._looked = now
        self.suspended = {key: until for key, until in self.suspended.items() if until > now}
        if since <= 0:
            return {}
        judged = [key for key in self.watched if key not in self.suspended]
        over = {
            key: self._over.get(key, 0.0) + sent.get(key, _Sent()).counted - self.max_per_s * since
            for key in judged
        }
        self._over = {key: num for key, num in over.items() if 0 < num <= self.burst}
        found = [key for key in judged if over[key] > self.burst]
        for key in found:
            self.suspended[key] = now + min(LONGEST_S, FIRST_S * 2 ** self._times[key])
            self._times[key] += 1
        return {key: sent[key].messages / since for key in found}


class Watch:
    """The guard of a configured server's folder: looks, and has the server act on it."""

    @staticmethod
    def is_due(settings: ServerSettings) -> bool:
        """Whether a server has users to judge: a leaf node has none, the broker judges it."""
        return settings.written and (settings.store_dir / USERS_FILE).exists()

    def __init__(self, server: BrokerServer) -> None:
        self._server, self._folder = server, server.settings.store_dir
        self._guard = Guard(())
        self._admin = kick.Administration(self._folder)
        self._out: frozenset[str] = frozenset()
        self._users: list[User] = []
        self._unread = ""  # why the folder's list of users cannot be read
        self._again = -math.inf  # when it is tried to cut somebody off
        self.pause_s = LOOK_S  # until the next look

    def close(self) -> None:
        self._admin.close()

    def look(self, now: float) -> list[str]:
        """One look; what there is to say. Raises OSError where the server does not answer."""
        connections = kick.connections(self._server.monitor_url)
        said = self._read_users()
        if not self._users:
            return said
        users = self._users
        labels = {user.public: user.label for user in users}
        self._guard.watched = {user.public for user in users if user.role in NAMED}
        said += [
            f"{labels[key]} floods the broker ({rate:,.0f} messages a second): not let in for "
            f"{self._guard.suspended[key] - now:.0f} s"
            for key, rate in self._guard.look(connections, now).items()
        ]
        out = frozenset(self._guard.suspended)
        let_in = [user for user in users if user.public not in out]
        changed = out != self._out
        if changed:
            write_users(self._folder, let_in)
        self._out = out
        num_cut = self._cut({user.public for user in let_in}, connections, now)
        if changed:  # last: while a server reloads it ends nobody's connection
            signal_reload(self._server.pid)
        self.pause_s = AGAIN_S if num_cut or said else LOOK_S
        return said

    def _read_users(self) -> list[str]:
        """Take up the folder's list of users, which may be half of a file that is copied there
        now: then the one before holds. What there is to say of it."""
        before = self._unread
        try:
            self._users, self._unread = read_users(self._folder), ""
        except DeploymentInvalid as error:
            self._unread = str(error)
        return [self._unread] if self._unread and self._unread != before else []

    def _cut(self, known: set[str], connections: list[Mapping[str, Any]], now: float) -> int:
        """How many connections were ended; what cannot be is left to the next look."""
        if now < self._again:
            return 0
        try:
            return self._admin.cut_strangers(known, connections) if self._admin.open() else 0
        except AtollError:  # it is not reached, or not let in
            self._again = now + _RETRY_S
            return 0
