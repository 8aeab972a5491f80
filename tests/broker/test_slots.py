"""What killed processes leave of a user's few consumers does not keep its next process out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.connection import Connection
from broker.jetstream_log import JetStreamLog
from broker.roles import NUM_SLOTS, SITE
from broker.slots import SETTLED_S, abandoned
from eventlog.errors import LogUnavailable
from tests.support.forkserver import CHECKOUT
from tests.support.secured import Secured, secured

RUN = "mine"
FOLLOWER = """
import asyncio, sys
from pathlib import Path
from broker.connection import connect
from broker.credentials import Credentials
from broker.jetstream_log import JetStreamLog

async def follow():
    identity = Credentials.read(Path(sys.argv[1]))
    connection = await connect(identity.urls, name="follower", identity=identity)
    logs = [await JetStreamLog.open(connection, "mine") for _ in range(int(sys.argv[2]))]
    async def one(log):
        async for _ in log.follow(0):
            print("reads", flush=True)
    await asyncio.gather(*map(one, logs))

asyncio.run(follow())
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "broker") as made:
        made.add(SITE, "alpha")
        yield made


def follower(broker: Secured, num: int) -> subprocess.Popen[str]:
    """A process that follows the log `num` times at once, and has begun to."""
    made = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(broker.file(SITE, "alpha")), str(num)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert made.stdout is not None
    for _ in range(num):
        assert made.stdout.readline() == "reads\n"
    return made


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Killed at the end of the block."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def ours(broker: Secured) -> tuple[Connection, Connection]:
    operator = await broker.connect("operator")
    log = await JetStreamLog.create(operator, RUN)
    await log.append("operator", [b"event"], 0)
    return operator, await broker.connect(SITE, "alpha")


async def test_the_next_process_reads_where_killed_ones_left_all_consumers(broker: Secured) -> None:
    operator, site = await ours(broker)
    killed = follower(broker, NUM_SLOTS[SITE] - 1)
    living = follower(broker, 1)
    killed.kill()
    killed.wait()
    log = await JetStreamLog.open(site, RUN, patience_s=4 * SETTLED_S)
    assert [one.payload for one in await log.read(0)] == [b"event"]
    for _ in range(NUM_SLOTS[SITE] - 2):  # and so do the processes after it
        assert len(await log.read(0)) == 1
    with ended(living):
        await (await JetStreamLog.open(operator, RUN)).append("operator", [b"more"], 1)
        assert living.stdout is not None and living.stdout.readline() == "reads\n", "it reads on"
    await site.close()
    await operator.close()


async def test_consumers_that_are_read_are_nobody_elses(broker: Secured) -> None:
    operator, site = await ours(broker)
    with ended(follower(broker, NUM_SLOTS[SITE])):
        log = await JetStreamLog.open(site, RUN, patience_s=SETTLED_S + 2)
        with pytest.raises(LogUnavailable, match="all their consumers in use"):
            await log.read(0)
    await site.close()
    await operator.close()


def test_the_one_that_was_silent_for_longest_is_taken_over() -> None:
    found = [info("a", waits=1, spoke=0), info("b", spoke=20), info("c", spoke=10), info("d")]
    assert abandoned(found) == "c"
    assert abandoned([found[0]]) is None
    assert abandoned([info("e", created=60 - SETTLED_S + 1)]) is None, "it only just began"
    assert abandoned([info("e", created=60 - SETTLED_S - 1)]) == "e"


def info(name: str, *, waits: int = 0, spoke: float | None = None, created: float = 15) -> Any:
    """As the broker tells of a consumer at 12:01:00."""
    last = {} if spoke is None else {"last_active": moment(spoke)}
    return {
        "name": name,
        "created": moment(min(created, created if spoke is None else spoke)),
        "ts": moment(60),
        "num_waiting": waits,
        "delivered": last,
    }


def moment(seconds: float) -> str:
    return f"2026-01-01T12:{int(seconds) // 60:02}:{seconds % 60:09.6f}Z"
