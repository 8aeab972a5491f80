"""Who floods is suspended, longer each time, and nobody else; on a real server by its own count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from broker.client import Outgoing
from broker.guard import FIRST_S, LONGEST_S, Guard, Watch
from broker.jetstream_log import JetStreamLog
from tests.broker.test_permission_matrix import bare
from tests.support.secured import Secured, secured

RUN = "guarded"


def said(**messages: int) -> list[Mapping[str, Any]]:
    """What the broker says of connections `key_cid`."""
    return [
        {"authorized_user": name[0], "cid": int(name[2:]), "in_msgs": num}
        for name, num in messages.items()
    ]


def test_a_rate_is_of_a_user_over_all_its_connections_since_the_last_look() -> None:
    guard = Guard({"a", "b"}, max_per_s=100)
    assert guard.look(said(a_1=10_000, b_2=0), 0.0) == {}, "the first look knows no rate"
    assert guard.look(said(a_1=10_100, b_2=60, b_3=30), 1.0) == {}
    assert guard.look(said(a_1=10_200, b_2=130, b_3=130), 2.0) == {"b": 170.0}
    assert guard.suspended == {"b": 2.0 + FIRST_S}


def test_who_is_not_watched_may_send_what_it_likes() -> None:
    guard = Guard({"a"}, max_per_s=100)
    guard.look([], 0.0)
    assert guard.look(said(c_1=1_000_000), 1.0) == {}


def test_a_suspension_ends_and_the_next_one_is_longer_up_to_a_bound() -> None:
    guard, now, spans = Guard({"a"}, max_per_s=100), 0.0, []
    guard.look([], now)
    for cid in range(1, 10):
        guard.look(said(**{f"a_{cid}": 1_000}), now + 1)
        spans.append(guard.suspended["a"] - (now + 1))
        now = guard.suspended["a"]
        assert guard.look([], now) == {} and guard.suspended == {}
    assert spans[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert spans[-1] == LONGEST_S and spans == sorted(spans)


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.add("site", "evil")
        made.add("site", "good")
        yield made


async def test_a_flooding_site_is_out_and_the_others_links_stand(broker: Secured) -> None:
    async with await broker.connect("operator") as operator:
        log = await JetStreamLog.create(operator, RUN)
        watch, out = Watch(broker.server), list[str]()
        async with (
            bare(broker.credentials("site", "evil")) as (evil, _),
            await broker.connect("site", "good") as good,
        ):
            watch.look(time.monotonic())
            async with asyncio.timeout(60):
                while not out:
                    for _ in range(3_000):
                        await evil.publish(f"atoll.{RUN}.ev.site.evil", b"x")
                    await evil.flush(10)
                    await asyncio.sleep(0.5)
                    out += watch.look(time.monotonic())
                while evil.is_connected:
                    await asyncio.sleep(0.1)
            assert out[0].startswith("site-evil floods the broker")
            written = await JetStreamLog.open(good, RUN)
            await written.append("site.good", [b"on"], 0)
            assert (good.num_breaks, operator.num_breaks) == (0, 0)
            await written.close()
        broker.add("site", "late")  # and who is let in by its operator meanwhile comes in
        async with await broker.connect("site", "late") as late:
            message = await late.control.request(Outgoing("$JS.API.STREAM.INFO.ATOLL_GUARDED"))
            assert b"error" not in message.data
        await log.close()
