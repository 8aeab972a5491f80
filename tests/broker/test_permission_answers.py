"""What a site with valid credentials can try beyond its subjects, tried: answers sent elsewhere,
consumers that push elsewhere, others' consumers, blobs under others' names, empty messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nats.errors import Error

from broker.client import DirectClient, Outgoing
from broker.connection import Connection, connect
from broker.errors import LinkDown, Refused
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from eventlog.errors import BlobDamaged
from eventlog.keys import Key
from tests.broker.test_permission_matrix import bare
from tests.support.secured import Secured, secured

RUN = "mine"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.add("site", "evil")
        made.add("site", "good")
        asyncio.run(_found(made))
        yield made


async def _found(made: Secured) -> None:
    async with await made.connect("operator") as connection:
        await JetStreamLog.create(connection, RUN)
        await JetStreamBlobs.create(connection, RUN)


@pytest.fixture
async def log(broker: Secured) -> AsyncIterator[JetStreamLog]:
    """Read by the auditor."""
    async with await broker.connect("auditor") as connection:
        opened = await JetStreamLog.open(connection, RUN)
        yield opened
        await opened.close()


@pytest.fixture
async def evil(broker: Secured) -> AsyncIterator[DirectClient]:
    async with bare(broker.credentials("site", "evil")) as (client, _):
        yield client


async def subjects_behind(log: JetStreamLog, last: int) -> set[str]:
    """Subjects of what came behind `last`, once the broker has done what it was asked."""
    await asyncio.sleep(0.5)
    return {record.subject for record in await log.read(last)}


@pytest.mark.parametrize("victim", ["coordinator", "operator", "site.good"])
async def test_permission_an_answer_lands_in_no_stream(
    log: JetStreamLog, evil: DirectClient, victim: str
) -> None:
    """Neither JetStream's words nor, by a direct get, bytes that were stored before."""
    last, target = await log.last_sequence(), f"atoll.{RUN}.ev.{victim}"
    blob = f"atoll.{RUN}.blob.{'0' * 64}.0.site-evil"
    await evil.publish(blob, b"a forged decision")
    for subject, body in (
        (f"atoll.{RUN}.ev.site.evil", b"mine"),
        ("$JS.API.STREAM.INFO.ATOLL_MINE", b""),
        ("$JS.API.STREAM.MSG.GET.ATOLL_MINE", json.dumps({"seq": 1}).encode()),
        (f"$JS.API.DIRECT.GET.ATOLL_MINE_BLOBS.{blob}", b""),
    ):
        await evil.publish(subject, body, reply=target)
    await evil.flush(10)
    assert await subjects_behind(log, last) == {"site.evil"}


async def test_permission_a_consumer_pushes_into_no_stream_and_asks_the_api_nothing(
    broker: Secured, log: JetStreamLog, evil: DirectClient
) -> None:
    last = await log.last_sequence()
    await evil.publish(f"atoll.{RUN}.blob.{'1' * 64}.0.site-evil", b"a forged decision")
    targets = [f"atoll.{RUN}.ev.coordinator", "$JS.API.STREAM.DELETE.ATOLL_MINE"]
    for slot, target in enumerate(targets):
        name = f"site-evil-{slot}"
        config = {"name": name, "deliver_subject": target, "ack_policy": "none"}
        body = {"stream_name": "ATOLL_MINE_BLOBS", "config": config, "action": "create"}
        subject = f"$JS.API.CONSUMER.CREATE.ATOLL_MINE_BLOBS.{name}"
        await evil.request(subject, json.dumps(body).encode(), timeout=5)
    assert await subjects_behind(log, last) == set()
    assert await log.last_sequence() == last, "the stream is there"


async def test_permission_a_user_has_no_more_consumers_than_its_own(
    broker: Secured, evil: DirectClient
) -> None:
    """They bound the memory it can take; a name that another process has is not taken over."""
    async with await broker.connect("site", "evil") as connection:
        opened = [await JetStreamLog.open(connection, RUN) for _ in range(9)]
        followers = [log.follow(0) for log in opened[:8]]
        await opened[0].append("site.evil", [b"x"], await last_of(opened[0], "site.evil"))
        for follower in followers:
            assert (await anext(follower))[0].sequence == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await anext(opened[8].follow(0))
        for log in opened:
            await log.close()
        for follower in followers:
            await follower.aclose()


async def last_of(log: JetStreamLog, subject: str) -> int:
    record = await log.last(subject)
    return record.sequence if record else 0


async def test_permission_nobody_can_spoil_or_replace_anothers_blob(
    broker: Secured, evil: DirectClient, tmp_path: Path
) -> None:
    """Also not before it is stored: a copy that is forged is passed by."""
    (tmp_path / "source").write_bytes(b"delta" * 1_000_000)
    async with await broker.connect("site", "good") as connection:
        blobs = await JetStreamBlobs.open(connection, RUN)
        ref = await blobs.put(tmp_path / "source")
        stored = f"atoll.{RUN}.blob.{ref.digest}"
        async with await broker.connect("coordinator") as other:
            await (await JetStreamBlobs.open(other, RUN)).release([ref.digest])
        for part in ("0", "1", "2", "meta"):
            await evil.publish(f"{stored}.{part}.site-evil", b"forged")
            await evil.publish(f"{stored}.{part}.site-good", b"forged")
        await evil.flush(10)
        with pytest.raises(BlobDamaged, match=ref.digest):
            await blobs.get(ref.digest, tmp_path / "target")
        await blobs.put(tmp_path / "source")
        await blobs.get(ref.digest, tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()
        link = connection.control  # a second message on a subject of one's own is refused as well
        answer = await link.request(Outgoing(f"{stored}.0.site-good", b"other bytes"))
        assert b"error" in answer.data
        await blobs.get(ref.digest, tmp_path / "again")


async def test_permission_empty_messages_between_others_hide_nothing_in_one_read(
    broker: Secured,
) -> None:
    """Of two requests that overlap the later one is answered on, past what the first one lost."""
    async with (
        await broker.connect("operator") as operator,
        bare(broker.credentials("site", "evil")) as (evil, _),
    ):
        log = await JetStreamLog.create(operator, "sprinkled")
        for number in range(1, 1_001):
            await evil.publish("atoll.sprinkled.ev.site.evil", b"" if number % 50 == 7 else b"x")
            if number % 100 == 0:
                await evil.flush(20)
                async with asyncio.timeout(60):
                    while await log.last_sequence() < number:  # the stream's queue is short
                        await asyncio.sleep(0.05)
        for _ in range(3):
            records = await log.read(0, limit=2_000)
            assert [record.sequence for record in records] == list(range(1, 1_001))
        await log.close()


async def test_permission_empty_messages_hide_nothing_from_whoever_reads_all(
    broker: Secured, log: JetStreamLog, evil: DirectClient
) -> None:
    """Between accounts an empty message ends the answers of a request."""
    before = await log.last_sequence()
    for number in range(2000):
        await evil.publish(f"atoll.{RUN}.ev.site.evil", b"" if number % 500 else b"full")
    await evil.flush(10)
    async with await broker.connect("coordinator") as connection:
        coordinator = await JetStreamLog.open(connection, RUN)
        last = await last_of(coordinator, "coordinator")
        end = await coordinator.append("coordinator", [b"decided"], last)
        read = [record.sequence for record in await coordinator.read(before, limit=10_000)]
        assert read == list(range(before + 1, end + 1))
        followed: list[int] = []
        async with asyncio.timeout(60):
            async for records in log.follow(before):
                followed += [record.sequence for record in records]
                if followed[-1] >= end:
                    break
        assert followed == read
        await coordinator.close()


async def test_permission_ends_with_its_revocation_and_another_is_left_alone(
    broker: Secured,
) -> None:
    revoked = broker.add("site", "leaver")
    leaver = await broker.connect("site", "leaver")
    stayer = await broker.connect("site", "good")
    try:
        broker.deployment.revoke("site", "leaver")
        broker.deployment.reload()
        with pytest.raises(LinkDown):
            for _ in range(100):
                await answer(leaver)
                await asyncio.sleep(0.1)
        assert await answer(stayer)
        assert stayer.num_breaks == 0
        with pytest.raises(Refused, match="site leaver"):
            await connect(revoked.urls, name="leaver", identity=revoked)
    finally:
        await leaver.close()
        await stayer.close()


async def answer(connection: Connection) -> bytes:
    message = await connection.control.request(Outgoing("$JS.API.STREAM.INFO.ATOLL_MINE"))
    return message.data


async def test_permission_is_refused_without_a_key_and_with_an_unknown_one(
    broker: Secured,
) -> None:
    known = broker.credentials("site", "good")
    with pytest.raises(Refused, match="site good"):
        await connect(known.urls, name="x", identity=replace(known, seed=Key.generate().seed))
    async with bare(known) as (client, _):
        nobody = DirectClient()
        with pytest.raises(Error, match="Authorization Violation"):
            await nobody.connect(known.urls, tls=known.tls(), allow_reconnect=False)
        assert client.is_connected
