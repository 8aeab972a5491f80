"""What every `EventLog` must do, whatever it is made of.

An implementation's tests subclass `LogContract` and give the fixture `new_log`: an async function
that opens a fresh, empty log of the run `RUN`. Whoever gives it also closes what it opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from eventlog.chain import Record
from eventlog.errors import Conflict, LogUnavailable
from eventlog.log import MAX_BATCH, MAX_PAYLOAD_BYTES, EventLog
from tests.contract.events import beat, claim, tick

RUN = "contract"
WAIT_S = 10.0

NewLog = Callable[[], Awaitable[EventLog]]


async def collect(batches: AsyncIterator[list[Record]], num_records: int) -> list[Record]:
    """The next records of a follower, `num_records` of them or more."""
    records: list[Record] = []
    async with asyncio.timeout(WAIT_S):
        while len(records) < num_records:
            batch = await anext(batches)
            assert batch, "a follower hands out no empty batch"
            records += batch
    return records


async def fill(log: EventLog, subjects: Sequence[str]) -> None:
    """One event per subject named, in this order."""
    last: dict[str, int] = {}
    for number, subject in enumerate(subjects, start=1):
        body = beat(subject.partition(".")[2], number) if "." in subject else tick(number)
        last[subject] = await log.append(subject, [body], last.get(subject, 0))


def places(records: Sequence[Record]) -> list[tuple[int, str]]:
    return [(record.sequence, record.subject) for record in records]


class LogContract:
    """Subclass it as `class TestXLog(LogContract)` beside a fixture `new_log`."""

    @pytest.fixture
    async def log(self, new_log: NewLog) -> EventLog:
        return await new_log()

    # -- reading and the order ---------------------------------------------------------------

    async def test_an_empty_log_has_no_events(self, log: EventLog) -> None:
        assert log.run == RUN
        assert await log.last_sequence() == 0
        assert await log.read(0) == []
        assert await log.at(0) is None
        assert await log.at(1) is None
        assert await log.last("coordinator") is None

    async def test_sequences_count_from_one_without_gaps(self, log: EventLog) -> None:
        bodies = [tick(number) for number in range(1, 6)]
        for expected, body in enumerate(bodies):
            assert await log.append("coordinator", [body], expected) == expected + 1
        records = await log.read(0)
        assert [record.sequence for record in records] == [1, 2, 3, 4, 5]
        assert [record.payload for record in records] == bodies
        assert {record.subject for record in records} == {"coordinator"}
        assert all(record.time_ns > 1_600_000_000 * 10**9 for record in records)
        assert await log.last_sequence() == 5

    async def test_a_record_reads_the_same_every_time_and_every_way(self, log: EventLog) -> None:
        await fill(log, ["coordinator", "site.a", "site.b", "site.a"])
        once, again = await log.read(0), await log.read(0)
        assert once == again
        assert [await log.at(sequence) for sequence in range(1, 5)] == once
        assert await log.read(0, subjects=["site.a"]) == [once[1], once[3]]
        assert await collect(log.follow(0), 4) == once

    async def test_read_goes_on_after_a_sequence_up_to_a_limit(self, log: EventLog) -> None:
        await log.append("coordinator", [tick(number) for number in range(1, 11)], 0)
        assert [r.sequence for r in await log.read(0, limit=4)] == [1, 2, 3, 4]
        assert [r.sequence for r in await log.read(4, limit=4)] == [5, 6, 7, 8]
        assert [r.sequence for r in await log.read(8, limit=4)] == [9, 10]
        assert await log.read(10, limit=4) == []

    async def test_a_filtered_read_gives_these_subjects_in_log_order(self, log: EventLog) -> None:
        await fill(log, ["site.a", "coordinator", "site.b", "site.a", "operator", "site.b"])
        records = await log.read(0, subjects=["site.b", "coordinator"])
        assert places(records) == [(2, "coordinator"), (3, "site.b"), (6, "site.b")]
        assert places(await log.read(2, subjects=["site.b", "coordinator"], limit=1)) == [
            (3, "site.b")
        ]
        assert await log.read(0, subjects=["site.c"]) == []
        assert await log.read(6, subjects=["site.b"]) == []

    async def test_a_name_that_begins_like_another_is_another(self, log: EventLog) -> None:
        await fill(log, ["site.a", "site.ab", "site.a-b"])
        assert places(await log.read(0, subjects=["site.a"])) == [(1, "site.a")]
        newest = await log.last("site.a")
        assert newest is not None
        assert newest.sequence == 1

    async def test_at_and_last_find_the_record(self, log: EventLog) -> None:
        await fill(log, ["site.a", "coordinator", "site.a", "coordinator", "operator"])
        third, last = await log.at(3), await log.last("site.a")
        assert third is not None
        assert (third.sequence, third.subject) == (3, "site.a")
        assert last == third
        assert await log.at(6) is None
        assert await log.last("planner") is None
        assert await log.last_sequence() == 5

    # -- appending ---------------------------------------------------------------------------

    async def test_a_wrong_expectation_writes_nothing_and_tells_the_truth(
        self, log: EventLog
    ) -> None:
        await fill(log, ["coordinator", "site.a", "coordinator"])
        for wrong in (0, 1, 2, 4):
            with pytest.raises(Conflict) as caught:
                await log.append("coordinator", [tick(8), tick(9)], wrong)
            assert (caught.value.expected, caught.value.actual) == (wrong, 3)
            assert caught.value.subject == "coordinator"
        with pytest.raises(Conflict) as caught:
            await log.append("site.b", [beat("b", 1)], 1)
        assert caught.value.actual == 0
        assert await log.last_sequence() == 3

    async def test_the_expectation_is_about_the_subject_not_the_log(self, log: EventLog) -> None:
        await fill(log, ["coordinator", "site.a", "site.b"])
        assert await log.append("coordinator", [tick(2)], 1) == 4
        assert await log.append("site.a", [beat("a", 2)], 2) == 5

    async def test_a_batch_stands_side_by_side_in_order(self, log: EventLog) -> None:
        await fill(log, ["site.a"])
        bodies = [tick(number) for number in range(1, 8)]
        assert await log.append("coordinator", bodies, 0) == 8
        records = await log.read(1)
        assert [record.payload for record in records] == bodies
        assert [record.sequence for record in records] == list(range(2, 9))

    async def test_concurrent_batches_do_not_interleave(self, log: EventLog) -> None:
        sites = [f"s{number}" for number in range(8)]
        batches = {site: [beat(site, number) for number in range(1, 26)] for site in sites}
        ends = await asyncio.gather(
            *(log.append(f"site.{site}", batches[site], 0) for site in sites)
        )
        assert sorted(ends) == [25 * (number + 1) for number in range(8)]
        records = await log.read(0)
        for site, end in zip(sites, ends, strict=True):
            assert [r.payload for r in records[end - 25 : end]] == batches[site]

    async def test_the_largest_batch_is_taken_whole(self, log: EventLog) -> None:
        bodies = [tick(number) for number in range(1, MAX_BATCH + 1)]
        assert await log.append("coordinator", bodies, 0) == MAX_BATCH
        assert [r.payload for r in await log.read(0)] == bodies

    async def test_a_repeated_append_reports_its_sequence_and_writes_nothing(
        self, log: EventLog
    ) -> None:
        await fill(log, ["site.a"])
        single, batch = [tick(1)], [tick(2), tick(3), tick(4)]
        assert await log.append("coordinator", single, 0) == 2
        assert await log.append("coordinator", single, 0) == 2
        assert await log.append("coordinator", batch, 2) == 5
        assert await log.append("coordinator", batch, 2) == 5
        assert await log.last_sequence() == 5

    async def test_a_repeated_append_is_found_behind_others(self, log: EventLog) -> None:
        batch = [tick(1), tick(2)]
        assert await log.append("coordinator", batch, 0) == 2
        await log.append("site.a", [beat("a", 1)], 0)
        assert await log.append("coordinator", [tick(3)], 2) == 4
        assert await log.append("coordinator", batch, 0) == 2
        assert await log.last_sequence() == 4

    async def test_an_append_that_only_begins_alike_is_no_repetition(self, log: EventLog) -> None:
        first, second = tick(1), tick(2)
        await log.append("coordinator", [first, second], 0)
        for other in ([first, tick(2)], [first, second, tick(3)], [second], [tick(1), second]):
            with pytest.raises(Conflict) as caught:
                await log.append("coordinator", other, 0)
            assert caught.value.actual == 2
        assert await log.last_sequence() == 2

    async def test_equal_ids_on_two_subjects_are_two_events(self, log: EventLog) -> None:
        assert await log.append("site.a", [beat("a", 1, "same")], 0) == 1
        assert await log.append("site.b", [beat("b", 1, "same")], 0) == 2
        assert [r.subject for r in await log.read(0)] == ["site.a", "site.b"]

    async def test_subjects_append_at_once_without_conflict(self, log: EventLog) -> None:
        async def write(site: str) -> None:
            last = 0
            for number in range(1, 11):
                last = await log.append(f"site.{site}", [beat(site, number)], last)

        await asyncio.gather(*(write(f"s{number}") for number in range(10)))
        records = await log.read(0)
        assert [record.sequence for record in records] == list(range(1, 101))
        for number in range(10):
            assert sum(r.subject == f"site.s{number}" for r in records) == 10

    async def test_of_twenty_claims_on_one_subject_one_wins(self, log: EventLog) -> None:
        claims = [claim(f"host-{number}") for number in range(20)]
        results = await asyncio.gather(
            *(log.append("coordinator", [body], 0) for body in claims), return_exceptions=True
        )
        winners = [number for number, result in enumerate(results) if result == 1]
        losers = [result for result in results if isinstance(result, Conflict)]
        assert (len(winners), len(losers)) == (1, 19)
        assert {loser.actual for loser in losers} == {1}
        assert [r.payload for r in await log.read(0)] == [claims[winners[0]]]

    @pytest.mark.parametrize(
        "subject",
        ["", "site", "site.", "site.A", "site.a.b", "site.*", ">", "coordinator.x", "site.a\n"],
    )
    async def test_a_subject_of_no_log_is_refused(self, log: EventLog, subject: str) -> None:
        with pytest.raises(ValueError, match="subject"):
            await log.append(subject, [tick(1)], 0)
        assert await log.last_sequence() == 0

    async def test_an_append_outside_the_limits_is_refused(self, log: EventLog) -> None:
        for bodies in ([], [tick(1)] * (MAX_BATCH + 1), [tick(1), bytes(MAX_PAYLOAD_BYTES + 1)]):
            with pytest.raises(ValueError, match="holds"):
                await log.append("coordinator", bodies, 0)
        assert await log.last_sequence() == 0

    # -- following ---------------------------------------------------------------------------

    async def test_follow_gives_what_is_there_and_what_comes(self, log: EventLog) -> None:
        await fill(log, ["coordinator", "site.a", "coordinator"])
        follower = log.follow(1)
        assert places(await collect(follower, 2)) == [(2, "site.a"), (3, "coordinator")]
        waiting = asyncio.create_task(collect(follower, 3))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await log.append("site.a", [beat("a", 2), beat("a", 3)], 2)
        await log.append("coordinator", [tick(3)], 3)
        assert places(await waiting) == [(4, "site.a"), (5, "site.a"), (6, "coordinator")]
        await follower.aclose()  # type: ignore[attr-defined]

    async def test_a_filtered_follower_sees_its_subjects_only(self, log: EventLog) -> None:
        await fill(log, ["coordinator", "site.a", "site.b"])
        follower = log.follow(0, subjects=["site.a", "operator"])
        assert places(await collect(follower, 1)) == [(2, "site.a")]
        waiting = asyncio.create_task(collect(follower, 2))
        await log.append("site.b", [beat("b", 2)], 3)
        await log.append("operator", [tick(1)], 0)
        await log.append("coordinator", [tick(2)], 1)
        await log.append("site.a", [beat("a", 2)], 2)
        assert places(await waiting) == [(5, "operator"), (7, "site.a")]
        await follower.aclose()  # type: ignore[attr-defined]

    async def test_followers_do_not_take_from_each_other(self, log: EventLog) -> None:
        followers = [log.follow(0) for _ in range(3)]
        waiting = [asyncio.create_task(collect(follower, 20)) for follower in followers]
        last = 0
        for number in range(1, 21):
            last = await log.append("coordinator", [tick(number)], last)
        for seen in await asyncio.gather(*waiting):
            assert [record.sequence for record in seen] == list(range(1, 21))
        for follower in followers:
            await follower.aclose()  # type: ignore[attr-defined]

    async def test_a_cancelled_follower_leaves_the_log_usable(self, log: EventLog) -> None:
        waiting = asyncio.create_task(collect(log.follow(0), 1))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await log.append("coordinator", [tick(1)], 0) == 1
        assert places(await collect(log.follow(0), 1)) == [(1, "coordinator")]

    # -- closing -----------------------------------------------------------------------------

    async def test_close_ends_followers_and_may_be_repeated(self, log: EventLog) -> None:
        await log.append("coordinator", [tick(1)], 0)
        follower = log.follow(0)
        await collect(follower, 1)
        waiting = asyncio.create_task(anext(follower, None))
        await asyncio.sleep(0.05)
        await log.close()
        await log.close()
        async with asyncio.timeout(WAIT_S):
            assert await waiting is None

    async def test_a_closed_log_is_unavailable(self, log: EventLog) -> None:
        await log.append("coordinator", [tick(1)], 0)
        await log.close()
        with pytest.raises(LogUnavailable):
            await log.append("coordinator", [tick(2)], 1)
        with pytest.raises(LogUnavailable):
            await log.read(0)
