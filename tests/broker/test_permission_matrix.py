"""Every role × every subject and call of the API, on a real server: what is allowed works, and
everything else is refused.

What should be is written down here by hand, not taken from `broker.roles`. A refusal is known by
the server's own error; what is allowed, by an answer of JetStream, or by the stream's growth.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.client import DirectClient
from broker.connection import Connection
from broker.credentials import Credentials
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from tests.support.secured import Secured, secured

RUN, OTHER = "mine", "theirs"  # the sites beta and gamma: beta may touch all runs, gamma only mine
ROLES = [
    ("operator", "main"),
    ("coordinator", "main"),
    ("planner", "main"),
    ("auditor", "main"),
    ("site", "beta"),
    ("site", "gamma"),
    ("agent", "beta"),
]
LABELS = [f"{role}-{name}" for role, name in ROLES]
DIGEST = "0" * 64
EVERYBODY = frozenset(LABELS)
NOBODY: frozenset[str] = frozenset()
SITES = frozenset({"site-beta", "site-gamma"})
BLOB_READERS = EVERYBODY - {"planner-main", "agent-beta"}
MINE_ONLY = frozenset({"site-gamma"})


def calls(run: str) -> list[tuple[str, frozenset[str]]]:
    """(subject, who may publish on it) of everything there is: of a run's events and blobs, and of
    the API of its streams."""
    log, blobs = f"ATOLL_{run.upper()}", f"ATOLL_{run.upper()}_BLOBS"
    own = {
        "operator": {"operator-main"},
        "coordinator": {"coordinator-main"},
        "planner": {"planner-main"},
        "site.beta": {"site-beta"},
        "site.gamma": {"site-gamma"},
        "site.delta": set[str](),
        "agent.beta": {"agent-beta"},
        "agent.gamma": set[str](),
        "auditor": set[str](),
    }
    found = [(f"atoll.{run}.ev.{subject}", frozenset(who)) for subject, who in own.items()]
    for label in LABELS:
        may = {label} & {"operator-main", "coordinator-main", *SITES}
        found.append((f"atoll.{run}.blob.{DIGEST}.0.{label}", frozenset(may)))
    found += [(f"atoll.{run}.blob.{DIGEST}.0", NOBODY), (f"atoll.{run}.other", NOBODY)]
    api = "$JS.API"
    for name, readers in ((log, EVERYBODY), (blobs, EVERYBODY)):
        found += [
            (f"{api}.STREAM.INFO.{name}", readers),
            (f"{api}.STREAM.CREATE.{name}", frozenset({"operator-main"})),
            (f"{api}.STREAM.PURGE.{name}", frozenset({"coordinator-main"})),
        ]
        for call in ("UPDATE", "DELETE", "MSG.DELETE", "SNAPSHOT", "RESTORE"):
            found.append((f"{api}.STREAM.{call}.{name}", NOBODY))
        for call in ("LEADER.STEPDOWN", "PEER.REMOVE"):
            found.append((f"{api}.STREAM.{call}.{name}", NOBODY))
        found.append((f"{api}.CONSUMER.LIST.{name}", NOBODY))
        found.append((f"{api}.CONSUMER.NAMES.{name}", NOBODY))
        found.append((f"{api}.CONSUMER.DURABLE.CREATE.{name}.x", NOBODY))
        found.append((f"{api}.CONSUMER.PAUSE.{name}.x", NOBODY))
        found.append((f"{api}.DIRECT.GET.{name}", NOBODY))  # any message, by its sequence
        for call in ("CREATE", "INFO", "MSG.NEXT", "DELETE"):
            found.append((f"{api}.CONSUMER.{call}.{name}.foreign", NOBODY))
            found.append((f"{api}.CONSUMER.{call}.{name}.site-beta-0", frozenset({"site-beta"})))
            found.append(
                (f"{api}.CONSUMER.{call}.{name}.operator-main-31", frozenset({"operator-main"}))
            )
    found += [
        (f"{api}.STREAM.MSG.GET.{log}", EVERYBODY),
        (f"{api}.DIRECT.GET.{blobs}.atoll.{run}.blob.{DIGEST}.0.site-beta", BLOB_READERS),
        (f"{api}.DIRECT.GET.{log}.atoll.{run}.ev.site.beta", NOBODY),
    ]
    return found


COMMON = [
    ("$JS.API.STREAM.NAMES", frozenset({"operator-main", "auditor-main"})),
    ("$JS.API.STREAM.LIST", NOBODY),
    ("$JS.API.INFO", NOBODY),
    ("$JS.API.ACCOUNT.PURGE.STORE", NOBODY),
    ("$JS.API.META.LEADER.STEPDOWN", NOBODY),
    ("$JS.API.SERVER.REMOVE", NOBODY),
    ("$SYS.REQ.SERVER.PING", NOBODY),
    ("$SYS.REQ.ACCOUNT.STORE.CONNZ", NOBODY),
    ("$JS.ACK.ATOLL_MINE.x.1.1.1.1.1", NOBODY),
    ("$JS.FC.ATOLL_MINE.x", NOBODY),
    ("anything", NOBODY),
    ("_INBOX.someone", NOBODY),
    ("_INBOX-coordinator-main.x.1", NOBODY),
    ("_R_.x", NOBODY),
]
LISTENS = [
    ("atoll.>", NOBODY),
    (f"atoll.{RUN}.ev.>", NOBODY),
    (f"atoll.{RUN}.blob.>", NOBODY),
    ("$JS.API.>", NOBODY),
    ("$JS.EVENT.>", NOBODY),
    ("$SYS.>", NOBODY),
    (">", NOBODY),
    ("_INBOX.>", NOBODY),
    ("_R_.>", NOBODY),
    ("*.>", NOBODY),
    *((f"_INBOX-{label}.>", frozenset({label})) for label in LABELS),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.add("site", "beta")
        made.add("site", "gamma", (RUN,))
        made.add("agent", "beta")
        asyncio.run(found(made))
        yield made


async def found(made: Secured) -> None:
    """The streams of both runs."""
    async with await made.connect("operator") as connection:
        for run in (RUN, OTHER):
            await JetStreamLog.create(connection, run)
            await JetStreamBlobs.create(connection, run)


@pytest.mark.parametrize(("role", "name"), ROLES)
async def test_permission_matrix_of_publishing(broker: Secured, role: str, name: str) -> None:
    label, expected, tried = f"{role}-{name}", set[str](), set[str]()
    async with bare(broker.credentials(role, name)) as (client, refused):
        for run in (RUN, OTHER):
            for subject, who in calls(run):
                tried.add(subject)
                if label not in who or (label in MINE_ONLY and run == OTHER):
                    expected.add(subject)
        for subject, who in COMMON:
            tried.add(subject)
            if label not in who:
                expected.add(subject)
        for subject in sorted(tried):
            await client.publish(subject, b"")
        await client.flush(20)
        found = {subject for subject in tried if said("publish", subject) in refused}
    assert found - expected == set(), "refused, and should be allowed"
    assert expected - found == set(), "allowed, and should be refused"


@pytest.mark.parametrize(("role", "name"), ROLES)
async def test_permission_matrix_of_listening(broker: Secured, role: str, name: str) -> None:
    label = f"{role}-{name}"
    async with bare(broker.credentials(role, name)) as (client, refused):
        for subject, _ in LISTENS:
            await client.subscribe(subject)
        await client.flush(20)
        found = {subject for subject, _ in LISTENS if said("subscription", subject) in refused}
    assert found == {subject for subject, who in LISTENS if label not in who}


@pytest.mark.parametrize(("role", "name"), ROLES)
async def test_permission_suffices_for_what_a_role_does(
    broker: Secured, role: str, name: str, tmp_path: Path
) -> None:
    """Through our own log and blobs: append on the own subject, read all, follow, move blobs."""
    async with await broker.connect(role, name) as connection:
        log = await JetStreamLog.open(connection, RUN)
        subject = connection.identity and connection.identity.user.subject
        if subject:
            last = await log.last(subject)
            await log.append(subject, [b"one", b"two"], last.sequence if last else 0)
        records = await log.read(0, limit=100_000)
        assert [record.sequence for record in records] == list(range(1, len(records) + 1))
        assert (await anext(log.follow(0)))[0] == records[0]
        assert await log.at(1) == records[0]
        await log.close()
        if f"{role}-{name}" in BLOB_READERS:
            await move_blobs(connection, tmp_path)


async def move_blobs(connection: Connection, folder: Path) -> None:
    """Store a blob, where that is allowed; fetch whatever is there."""
    blobs = await JetStreamBlobs.open(connection, RUN)
    (folder / "source").write_bytes(connection.label.encode() * 200_000)
    if connection.label != "auditor-main":
        ref = await blobs.put(folder / "source")
        assert await blobs.has(ref.digest)
    for digest in await blobs.digests():
        await blobs.get(digest, folder / digest)
    if connection.label == "coordinator-main":
        await blobs.release([ref.digest])
        assert not await blobs.has(ref.digest)


@contextlib.asynccontextmanager
async def bare(identity: Credentials) -> AsyncIterator[tuple[DirectClient, set[str]]]:
    """A client of somebody without any of our own care, and what the server refuses it."""
    refused: set[str] = set()

    async def on_error(error: Exception) -> None:
        refused.add(str(error).lower())

    client = DirectClient()
    await client.connect(
        identity.urls,
        signature_cb=client.identify(identity.key),
        tls=identity.tls(),
        error_cb=on_error,
        inbox_prefix=identity.user.inbox,
        allow_reconnect=False,
    )
    try:
        yield client, refused
    finally:
        await client.close()


def said(what: str, subject: str) -> str:
    """How the server words a refusal."""
    return f'nats: permissions violation for {what} to "{subject.lower()}"'
