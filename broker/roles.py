"""Who may say and ask what: the broker's permissions, by role.

Pure. A user publishes events on one subject, its own; asks for what its role reads; and hears
nothing but answers, in inboxes of its own. Whatever is not listed is refused by the broker. Why the
accounts around these lists are needed as well: `broker.production`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eventlog.events import AGENT, COORDINATOR, OPERATOR, PLANNER, SITE
from eventlog.keys import is_public
from eventlog.log import NAME

AUDITOR = "auditor"
ROLES = (OPERATOR, COORDINATOR, SITE, AGENT, PLANNER, AUDITOR)
NAMED = (SITE, AGENT)  # whose subject carries their name
API = "$JS.API"
NUM_SLOTS = {SITE: 8, AGENT: 8, PLANNER: 8, COORDINATOR: 16, OPERATOR: 32, AUDITOR: 32}


@dataclass(frozen=True, slots=True)
class User:
    """One key. `runs`: those it may touch; empty for all, future ones too. `leaf`: whether it may
    come through a leaf node of its centre (`broker.leaf`)."""

    role: str
    name: str
    public: str
    runs: tuple[str, ...] = ()
    leaf: bool = False

    @property
    def label(self) -> str:
        """Unique on a broker: `site-alpha`."""
        return f"{self.role}-{self.name}"

    @property
    def subject(self) -> str | None:
        """Where its events stand, relative to a run; None for who only reads."""
        if self.role in NAMED:
            return f"{self.role}.{self.name}"
        return None if self.role == AUDITOR else self.role

    @property
    def connection_types(self) -> tuple[str, ...]:
        """How it may connect: as a client, or for a leaf node, which speaks for clients."""
        return ("STANDARD", "WEBSOCKET", *(("LEAFNODE",) if self.leaf else ()))

    @property
    def inbox(self) -> str:
        """What every inbox of it begins with: a whole token, so that no other can listen there."""
        return f"_INBOX-{self.label}"

    def slots(self) -> list[str]:
        """Names of the consumers that it may have at once, on each stream. Nobody else may touch
        them, and they bound the memory that it can take."""
        return [f"{self.label}-{number}" for number in range(NUM_SLOTS[self.role])]

    def check(self) -> None:
        """Raises ValueError where no user can be like this."""
        if self.role not in ROLES:
            raise ValueError(f"{self.role!r} is no role: {', '.join(ROLES)}")
        for name in (self.name, *self.runs):
            if not NAME.match(name):
                raise ValueError(f"{name!r} is no name: a-z, 0-9 and -, at most 63 of them")
        if not is_public(self.public):
            raise ValueError(f"{self.public!r} is no public key")


def publishes(user: User) -> list[str]:
    """Subjects that the user may publish on, requests to JetStream among them."""
    found: list[str] = []
    for run in user.runs or ("*",):
        log, blobs = ("*", "*") if run == "*" else (stream(run), stream(run) + "_BLOBS")
        found += _own(user, run)
        found += _reads(user, log)
        if user.role in (OPERATOR, AUDITOR) and run != "*":
            found += _reads(user, f"{log}_MIRROR")
        if user.role not in (AGENT, PLANNER):
            found += [f"{API}.STREAM.INFO.{blobs}", f"{API}.DIRECT.GET.{blobs}.atoll.{run}.blob.>"]
        if user.role == COORDINATOR:
            found.append(f"{API}.STREAM.PURGE.{blobs}")
        if user.role == OPERATOR:
            found += [f"{API}.STREAM.CREATE.{name}" for name in (log, blobs)]
            found += [f"{API}.STREAM.CREATE.{log}_MIRROR"] if run != "*" else []
    if user.role in (OPERATOR, AUDITOR):
        found.append(f"{API}.STREAM.NAMES")
    return list(dict.fromkeys(found))


def subscribes(user: User) -> list[str]:
    """Subjects that the user may listen on."""
    return [f"{user.inbox}.>"]


def allows(patterns: Iterable[str], subject: str) -> bool:
    """Whether a subject is one of those that patterns stand for (`*`: a token, `>`: the rest)."""
    tokens = subject.split(".")
    return any(_matches(pattern.split("."), tokens) for pattern in patterns)


def _matches(pattern: list[str], tokens: list[str]) -> bool:
    for number, one in enumerate(pattern):
        if one == ">":
            return len(tokens) > number
        if number >= len(tokens) or one not in ("*", tokens[number]):
            return False
    return len(tokens) == len(pattern)


def stream(run: str) -> str:
    """The name of a run's stream of events."""
    return f"ATOLL_{run.upper()}"


def _own(user: User, run: str) -> Iterable[str]:
    """What the user adds to a run: its events; blobs, under its own name."""
    if user.subject is not None:
        yield f"atoll.{run}.ev.{user.subject}"
    if user.role in (OPERATOR, COORDINATOR, SITE):
        yield f"atoll.{run}.blob.*.*.{user.label}"


def _reads(user: User, log: str) -> Iterable[str]:
    """A run's log: its state, single messages, and consumers of the user's own."""
    yield f"{API}.STREAM.INFO.{log}"
    yield f"{API}.STREAM.MSG.GET.{log}"
    for call in ("CREATE", "INFO", "MSG.NEXT", "DELETE"):
        for slot in user.slots():
            yield f"{API}.CONSUMER.{call}.{log}.{slot}"
