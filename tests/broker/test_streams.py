"""Streams of runs: apart from each other, as configured, and damage in them named."""

from __future__ import annotations

import pytest

from broker.api import ask, get_message, parse_time
from broker.client import Outgoing
from broker.connection import Connection
from broker.errors import ApiError, BrokerUnfit
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog, list_runs
from broker.streams import blob_config, log_config, log_stream
from eventlog.errors import LogDamaged, RunUnknown
from tests.contract.events import beat, tick
from tests.contract.log_contract import collect


async def test_two_runs_on_one_broker_do_not_see_each_other(
    connection: Connection, run_name: str
) -> None:
    one = await JetStreamLog.create(connection, run_name)
    two = await JetStreamLog.create(connection, f"{run_name}-b")
    assert await one.append("coordinator", [tick(1), tick(2)], 0) == 2
    assert await two.append("coordinator", [tick(7)], 0) == 1
    assert [r.sequence for r in await one.read(0)] == [1, 2]
    assert [r.sequence for r in await two.read(0)] == [1]
    await JetStreamBlobs.create(connection, run_name)
    listed = await list_runs(connection)
    assert {run_name, f"{run_name}-b"} <= set(listed)
    assert not any("blobs" in name for name in listed)


async def test_a_run_that_does_not_exist_is_named(connection: Connection) -> None:
    for kind in (JetStreamLog, JetStreamBlobs):
        with pytest.raises(RunUnknown, match="'nowhere'"):
            await kind.open(connection, "nowhere")
    assert "nowhere" not in await list_runs(connection)


async def test_creating_a_run_again_takes_the_stream_that_is_there(
    connection: Connection, run_name: str
) -> None:
    first = await JetStreamLog.create(connection, run_name)
    await first.append("coordinator", [tick(1)], 0)
    again = await JetStreamLog.create(connection, run_name)
    assert await again.last_sequence() == 1


@pytest.mark.parametrize(
    ("field", "value"), [("max_msgs", 5), ("max_age", 10**12), ("allow_rollup_hdrs", True)]
)
async def test_a_changed_configuration_is_refused_by_name(
    connection: Connection, run_name: str, field: str, value: object
) -> None:
    """Of the blobs' stream as of the events': what may be updated is found when it is opened."""
    await JetStreamLog.create(connection, run_name)
    await JetStreamBlobs.create(connection, run_name)
    for kind, config in (
        (JetStreamLog, log_config(run_name)),
        (JetStreamBlobs, blob_config(run_name)),
    ):
        if field == "allow_rollup_hdrs" and config["deny_purge"]:
            continue  # the broker itself refuses that
        body = config | {"num_replicas": 1, field: value}
        await ask(connection.control, f"STREAM.UPDATE.{config['name']}", body)
        with pytest.raises(BrokerUnfit, match=field):
            await kind.open(connection, run_name)
        with pytest.raises(BrokerUnfit, match=config["name"]):
            await kind.create(connection, run_name)


async def test_the_broker_itself_denies_to_delete_an_event(
    connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(1)], 0)
    stream = log_stream(run_name)
    for subject, body in (
        (f"STREAM.MSG.DELETE.{stream}", {"seq": 1}),
        (f"STREAM.PURGE.{stream}", {}),
    ):
        with pytest.raises(ApiError):
            await ask(connection.control, subject, body)
    assert await log.last_sequence() == 1


async def erasable(connection: Connection, run: str, num_events: int) -> JetStreamLog:
    """A log whose stream somebody made so that events can be removed from it."""
    body = log_config(run) | {"num_replicas": 1, "deny_delete": False, "deny_purge": False}
    await ask(connection.control, f"STREAM.CREATE.{log_stream(run)}", body)
    log = JetStreamLog(connection, run)
    await log.append("coordinator", [tick(n) for n in range(1, num_events + 1)], 0)
    return log


async def test_an_event_that_vanished_is_damage_at_its_sequence(
    connection: Connection, run_name: str
) -> None:
    log = await erasable(connection, run_name, 5)
    await ask(connection.control, f"STREAM.MSG.DELETE.{log_stream(run_name)}", {"seq": 3})
    for reading in (
        log.read(0),
        log.read(4),
        log.read(0, subjects=["site.a"]),
        anext(log.follow(0)),
    ):
        with pytest.raises(LogDamaged) as caught:
            await reading
        assert caught.value.sequence == 3


async def test_a_beginning_that_was_purged_is_damage(connection: Connection, run_name: str) -> None:
    log = await erasable(connection, run_name, 5)
    await ask(connection.control, f"STREAM.PURGE.{log_stream(run_name)}", {"seq": 3})
    with pytest.raises(LogDamaged) as caught:
        await log.read(2)
    assert caught.value.sequence == 1


async def test_an_event_that_vanishes_ahead_of_a_follower_is_damage(
    connection: Connection, run_name: str
) -> None:
    log = await erasable(connection, run_name, 2)
    follower = log.follow(0)
    assert [r.sequence for r in await collect(follower, 2)] == [1, 2]
    # Published and removed before the follower can see it: nobody asks while it is suspended.
    for number in range(3, 600):
        subject = f"atoll.{run_name}.ev.coordinator"
        await connection.control.request(Outgoing(subject, tick(number)))
    await ask(connection.control, f"STREAM.MSG.DELETE.{log_stream(run_name)}", {"seq": 590})
    seen = [2]
    with pytest.raises(LogDamaged) as caught:
        async for records in follower:
            seen += [record.sequence for record in records]
    assert caught.value.sequence == 590
    assert seen == list(range(2, 590))


async def test_a_log_that_ends_before_ones_position_is_damage(
    connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    await log.append("coordinator", [tick(n) for n in range(1, 6)], 0)
    await ask(connection.control, f"STREAM.DELETE.{log_stream(run_name)}")
    with pytest.raises(LogDamaged, match="gone"):
        await log.read(5)
    again = await JetStreamLog.create(connection, run_name)
    await again.append("coordinator", [tick(1), tick(2)], 0)
    for reading in (log.read(5), anext(log.follow(5))):
        with pytest.raises(LogDamaged) as caught:
            await reading
        assert caught.value.sequence == 3


@pytest.mark.parametrize("subjects", [None, ["coordinator"]])
async def test_a_log_that_went_back_and_grew_past_ones_position_is_damage(
    connection: Connection, run_name: str, subjects: list[str] | None
) -> None:
    """R19: another event at one's position. The length alone would not show it."""
    await JetStreamLog.create(connection, run_name)
    log = await JetStreamLog.open(connection, run_name, heartbeat_s=0.5)
    await log.append("coordinator", [tick(n) for n in range(1, 6)], 0)
    follower = log.follow(0, subjects=subjects)
    assert len(await collect(follower, 5)) == 5
    await ask(connection.control, f"STREAM.DELETE.{log_stream(run_name)}")
    again = await JetStreamLog.create(connection, run_name)
    await again.append("coordinator", [tick(n) for n in range(11, 19)], 0)
    with pytest.raises(LogDamaged) as caught:
        await anext(follower)
    assert caught.value.sequence == 5


async def test_a_record_has_the_brokers_time_to_the_nanosecond(
    connection: Connection, run_name: str
) -> None:
    log = await JetStreamLog.create(connection, run_name)
    for number in range(1, 41):
        await log.append(f"site.s{number}", [beat(f"s{number}", 1)], 0)
    times = [record.time_ns for record in await log.read(0)]
    assert times == sorted(times)
    assert any(time_ns % 1000 for time_ns in times), "nanoseconds are kept, not microseconds"
    for sequence, time_ns in enumerate(times, start=1):
        stored = await get_message(connection.control, log_stream(run_name), {"seq": sequence})
        assert stored is not None
        assert stored.time_ns == time_ns


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("2001-09-09T01:46:40.5Z", 10**18 + 5 * 10**8),
        ("2001-09-09T01:46:40.000000001Z", 10**18 + 1),
        ("2033-05-18T03:33:20.12345678Z", 2 * 10**18 + 123_456_780),
    ],
)
def test_times_are_read_exactly(text: str, time_ns: int) -> None:
    assert parse_time(text) == time_ns
