"""The doctor's self-test of permissions: on a real broker every role is found to be what it is, and
a broker that lets somebody do more or less is found out. Nothing comes of the trying."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from broker.connection import Connection
from broker.errors import BrokerUnreachable
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.node import reload_node, signal_reload
from broker.roles import ROLES, allows
from broker.selftest import Tried, selftest
from ops.doctor.permitted import permitted
from tests.support.secured import Secured, secured

RUN, OTHER = "tried", "closed"
EVENT = f"atoll.{RUN}.ev"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.add("site", "main")
        made.add("agent", "main")
        made.add("site", "other", (OTHER,))
        asyncio.run(founded(made))
        yield made


async def founded(broker: Secured) -> None:
    async with await broker.connect("operator") as connection:
        for run in (RUN, OTHER):
            log = await JetStreamLog.create(connection, run)
            await log.append("operator", [b"one"], 0)
            await log.close()
        await JetStreamBlobs.create(connection, RUN)  # the other keeps its blobs elsewhere


async def stand(connection: Connection) -> tuple[object, ...]:
    """All that a run's two streams hold."""
    log = await JetStreamLog.open(connection, RUN)
    records = await log.read(0, limit=100)
    blobs = await JetStreamBlobs.open(connection, RUN)
    found = (tuple(records), tuple(await blobs.digests()))
    await log.close()
    return found


@pytest.mark.parametrize("role", ROLES)
async def test_permission_of_every_role_is_found_to_be_its_own_and_nothing_is_written(
    role: str, broker: Secured
) -> None:
    async with await broker.connect("operator") as operator:
        before = await stand(operator)
        async with await broker.connect(role) as connection:
            for run in (RUN, OTHER):
                tried = await selftest(connection, run)
                assert (tried.refused, tried.allowed) == ((), ())
                assert tried.num >= 19
            finding = await permitted(connection, RUN)
            assert finding.level == "good" and f"{role}-main" in finding.what
        assert await stand(operator) == before


async def tried(broker: Secured, role: str, name: str, run: str = RUN) -> Tried:
    async with await broker.connect(role, name) as connection:
        return await selftest(connection, run)


async def test_permission_that_is_missing_is_named(broker: Secured) -> None:
    """Credentials for another run: all that a site does is refused."""
    found = await tried(broker, "site", "other")
    assert f"{EVENT}.site.other" in found.refused and len(found.refused) == 7
    assert found.allowed == ()
    async with await broker.connect("site", "other") as connection:
        finding = await permitted(connection, RUN)
    assert finding.level == "bad" and "is not let do its part" in finding.what


async def test_permission_that_is_too_much_is_named(broker: Secured) -> None:
    """A users.conf that somebody changed: the site may write as the coordinator, and purge."""
    folder = broker.server.settings.store_dir
    path = folder / "users.conf"
    whole, mine = path.read_text(), '"atoll.*.ev.site.main"'
    more = f'{mine}, "atoll.*.ev.coordinator", "$JS.API.STREAM.PURGE.*"'
    assert whole.count(mine) == 1
    path.write_text(whole.replace(mine, more))
    signal_reload(broker.server.pid)
    try:
        async with asyncio.timeout(20):
            found = None
            while not (found and found.allowed):
                await asyncio.sleep(0.1)
                with contextlib.suppress(BrokerUnreachable):  # the reload ends what it has changed
                    found = await tried(broker, "site", "main")
        purges = {f"$JS.API.STREAM.PURGE.ATOLL_TRIED{end}" for end in ("", "_BLOBS")}
        assert set(found.allowed) == {f"{EVENT}.coordinator", *purges}
        assert found.refused == ()
        async with await broker.connect("operator") as operator:
            records, _ = await stand(operator)
            assert len(records) == 1  # type: ignore[arg-type]
    finally:
        assert reload_node(folder)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.c", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False),
        ("a.*", "a", False), ("a.>", "a.b.c", True), ("a.>", "a", False), (">", "a", True),
        ("a.*.c", "a.b.c", True), ("a", "a.b", False),
    ],
)  # fmt: skip
def test_permission_patterns_are_those_of_the_broker(
    pattern: str, subject: str, expected: bool
) -> None:
    assert allows([pattern], subject) is expected
