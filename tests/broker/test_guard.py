"""Who floods is cut off and suspended, longer each time, and nobody else; on a real server by its
own count."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest

from broker import monitor
from broker.client import DirectClient, Outgoing
from broker.guard import FIRST_S, LONGEST_S, Guard, Watch
from broker.jetstream_log import JetStreamLog
from broker.production import BURST, MAX_PER_S
from sitehub.logic import MAX_APPEND
from tests.broker.test_permission_matrix import bare
from tests.support.secured import Secured, secured

CUT_S = 3.0  # a handshake may last 5 s
RUN = "guarded"


def test_a_list_of_users_that_is_being_copied_ends_nothing(broker: Secured) -> None:
    path = broker.server.settings.store_dir / "users.json"
    whole = path.read_text()
    with closing(Watch(broker.server)) as watch:
        assert watch.look(0.0) == []
        for half in ("", whole[: len(whole) // 2]):
            path.write_text(half)
            (text,) = watch.look(1.0)
            assert str(path) in text
            assert watch.look(2.0) == [], "said once"
            path.write_text(whole)
            assert watch.look(3.0) == []


def said(**messages: int | tuple[int, int]) -> list[Mapping[str, Any]]:
    """What the broker says of connections `key_cid`: messages, or those and bytes."""
    found = []
    for name, sent in messages.items():
        num, moved = sent if isinstance(sent, tuple) else (sent, 0)
        one = {"authorized_user": name[0], "cid": int(name[2:]), "in_msgs": num}
        found.append(one | {"in_bytes": moved // 2, "out_bytes": moved - moved // 2})
    return found


def test_a_rate_is_of_a_user_over_all_its_connections_since_the_last_look() -> None:
    guard = Guard({"a", "b"}, max_per_s=100, burst=50)
    assert guard.look(said(a_1=10_000, b_2=0), 0.0) == {}, "the first look knows no rate"
    assert guard.look(said(a_1=10_100, b_2=60, b_3=30), 1.0) == {}
    assert guard.look(said(a_1=10_200, b_2=130, b_3=130), 2.0) == {"b": 170.0}
    assert guard.suspended == {"b": 2.0 + FIRST_S}


def test_a_burst_is_borne_and_a_rate_above_the_bound_is_not_for_long() -> None:
    """At 30 beyond the bound a second, 100 are used up in the fourth second."""
    guard = Guard({"a"}, max_per_s=100, burst=100)
    guard.look(said(a_1=0), 0.0)
    assert guard.look(said(a_1=200), 1.0) == {}, "all of the burst at once"
    assert guard.look(said(a_1=200), 2.0) == {}, "a second's rest gives it back"
    assert [guard.look(said(a_1=200 + 130 * n), 2.0 + n) for n in (1, 2, 3)] == [{}, {}, {}]
    assert guard.look(said(a_1=200 + 130 * 4), 6.0) == {"a": 130.0}


def test_messages_that_move_a_mib_are_free_and_others_are_not() -> None:
    """Chunks of 2 MiB up, or asked for and down, at any rate; a byte less than a MiB each counts
    in proportion."""
    guard = Guard({"a", "b"}, max_per_s=100, burst=50)
    guard.look([], 0.0)
    assert guard.look(said(a_1=(5_000, 5_000 << 20), b_2=(302, 151 << 20)), 1.0) == {"b": 302.0}
    assert guard.look(said(a_1=(10_000, 5_000 << 20)), 2.0) == {"a": 5_000.0}


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


def test_a_hub_after_an_outage_is_within_the_burst() -> None:
    """Its largest append, sent again where answers are lost, each message with a look-up."""
    assert 2 * MAX_APPEND <= BURST


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.add("site", "evil")
        made.add("site", "good")
        yield made


async def test_a_flooding_site_is_out_and_the_others_links_stand(broker: Secured) -> None:
    async with await broker.connect("operator") as operator:
        log = await JetStreamLog.create(operator, RUN)
        with closing(Watch(broker.server)) as watch:
            async with (
                bare(broker.credentials("site", "evil")) as (evil, _),
                await broker.connect("site", "good") as good,
            ):
                said = await flooded(watch, evil)
                assert said.startswith("site-evil floods the broker")
                async with asyncio.timeout(CUT_S):
                    while evil.is_connected:
                        await asyncio.sleep(0.02)
                written = await JetStreamLog.open(good, RUN)
                await written.append("site.good", [b"on"], 0)
                assert (good.num_breaks, operator.num_breaks) == (0, 0)
                await written.close()
            broker.add("site", "late")  # and who is let in by its operator meanwhile comes in
            async with await broker.connect("site", "late") as late:
                info = Outgoing("$JS.API.STREAM.INFO.ATOLL_GUARDED")
                assert b"error" not in (await late.control.request(info)).data
        await log.close()


async def test_whoever_floods_is_cut_off_while_half_open_links_hold_up_the_reload(
    broker: Secured,
) -> None:
    """A server reloads only after all handshakes under way: those of a site that hangs last as
    long as they may. The flood does not."""
    async with await broker.connect("operator") as operator:
        log = await JetStreamLog.create(operator, RUN)
        with closing(Watch(broker.server)) as watch, ExitStack() as stack:
            async with bare(broker.credentials("site", "evil")) as (evil, _):
                before, port = load_time(broker), broker.deployment.shape.port
                for _ in range(100):
                    stack.enter_context(socket.create_connection(("localhost", port)))
                await flooded(watch, evil)
                async with asyncio.timeout(CUT_S):
                    while evil.is_connected:
                        await asyncio.sleep(0.02)
                assert load_time(broker) == before, "it has not reloaded yet"
        await log.close()


async def test_batches_that_are_begun_and_left_keep_nobody_from_theirs(broker: Secured) -> None:
    """The broker counts unfinished batches of all writers together, by default up to fifty; as
    many as the guard lets somebody begin before the first are dropped leave half of ours."""
    batch = re.search(r"batch {(.*?)}", broker.server.settings.config_file.read_text())
    assert batch is not None
    bounds = dict(part.strip().split(": ") for part in batch[1].split(","))
    bound, kept_s = int(bounds["max_inflight_per_stream"]), int(bounds["timeout"].strip('"s'))
    assert bound >= 2 * (BURST + MAX_PER_S * kept_s)
    async with await broker.connect("operator") as operator:
        created = await JetStreamLog.create(operator, RUN)
        async with (
            bare(broker.credentials("site", "evil")) as (evil, _),
            await broker.connect("site", "good") as good,
        ):
            for number in range(200):
                headers = {"Nats-Batch-Id": f"{number}", "Nats-Batch-Sequence": "1"}
                await evil.publish(f"atoll.{RUN}.ev.site.evil", b"x", "", headers)
            await evil.flush(10)
            log = await JetStreamLog.open(good, RUN)
            assert await log.append("site.good", [b"one", b"two"], 0) == 2
            await log.close()
        await created.close()


async def flooded(watch: Watch, evil: DirectClient) -> str:
    """Flood until the guard says so; what it says."""
    watch.look(time.monotonic())
    async with asyncio.timeout(60):
        while True:
            for _ in range(3_000):
                await evil.publish(f"atoll.{RUN}.ev.site.evil", b"x")
            await evil.flush(10)
            if said := watch.look(time.monotonic()):
                return said[0]
            await asyncio.sleep(0.1)


def load_time(broker: Secured) -> str:
    """When the server read its configuration."""
    varz = json.loads(monitor.ask(f"{broker.server.monitor_url}/varz", 5.0))
    return str(varz["config_load_time"])
