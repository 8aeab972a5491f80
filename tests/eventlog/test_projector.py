"""Projections: rows and position stand and fall together, and the log is checked against them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from eventlog.chain import Record, start
from eventlog.errors import LogDamaged
from eventlog.memory_log import MemoryLog
from eventlog.projector import Position, Projection, run_projection
from tests.contract.events import beat, tick
from tests.eventlog.folds import Odd, Seen, history, placed, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "projections" / "r.sqlite"


@pytest.fixture
def memory() -> Iterator[Projection]:
    with Projection(":memory:", [Seen(), Odd()], "r") as projection:
        yield projection


async def logged(num_events: int) -> MemoryLog:
    log = MemoryLog("r")
    for record in history(num_events):
        await log.append("coordinator", [record.payload], record.sequence - 1)
    return log


def test_a_new_projection_stands_before_the_first_event(memory: Projection) -> None:
    assert memory.position == Position(0, "", start("r").hex())
    assert rows(memory) == []
    assert memory.apply([]) == []


def test_a_batch_gives_each_entry_with_each_folds_verdict(memory: Projection) -> None:
    broken = Record(3, "site.a", 3, b"no event")
    folded = memory.apply([*history(2), broken])
    assert [entry.record.sequence for entry, _ in folded] == [1, 2, 3]
    assert folded[0][1] == ["", "odd"]
    assert folded[1][1] == ["", ""]
    assert folded[2][1] == [folded[2][0].problem, "odd"]
    assert folded[2][0].problem
    assert memory.position == placed([*history(2), broken])


def test_it_makes_no_difference_how_the_log_is_batched() -> None:
    records = history(20)
    ends = []
    for size in (1, 3, 20):
        with Projection(":memory:", [Seen()], "r") as projection:
            for begin in range(0, 20, size):
                projection.apply(records[begin : begin + size])
            ends.append((projection.position, list(projection.db.iterdump())))
    assert ends[0] == ends[1] == ends[2]
    assert ends[0][0] == placed(records)


def test_a_fold_that_raises_leaves_rows_and_position_as_before(path: Path) -> None:
    fold = Seen()
    with Projection(path, [fold, Odd()], "r") as projection:
        projection.apply(history(3))
        before = projection.position
        fold.bug_at = 6
        with pytest.raises(RuntimeError, match="a bug in the fold"):
            projection.apply(history(5, 4))
        assert (rows(projection), projection.position) == ([1, 2, 3], before)
        fold.bug_at = 0
        projection.apply(history(5, 4))
        assert projection.position == placed(history(8))
    with Projection(path, [Seen(), Odd()], "r") as again:
        assert (rows(again), again.position) == (list(range(1, 9)), placed(history(8)))


@pytest.mark.parametrize(
    ("sequences", "wrong"), [([4, 6], 5), ([5], 4), ([4, 4], 4), ([3], 3), ([4, 5, 2], 2)]
)
def test_records_that_do_not_go_on_are_refused_before_anything_is_written(
    memory: Projection, sequences: list[int], wrong: int
) -> None:
    memory.apply(history(3))
    before = memory.position
    with pytest.raises(LogDamaged) as caught:
        memory.apply([history(1, number)[0] for number in sequences])
    assert caught.value.sequence == wrong
    assert (rows(memory), memory.position) == ([1, 2, 3], before)


def test_a_filtered_projection_takes_rising_sequences() -> None:
    with Projection(":memory:", [Seen()], "r", contiguous=False) as projection:
        projection.apply([history(1, number)[0] for number in (2, 5, 9)])
        assert (rows(projection), projection.position.sequence) == ([2, 5, 9], 9)
        with pytest.raises(LogDamaged) as caught:
            projection.apply(history(1, 9))
        assert caught.value.sequence == 9


# -- against a log (R19) --------------------------------------------------------------------------


async def test_a_projection_catches_up_with_its_log(memory: Projection) -> None:
    log = await logged(2500)
    assert await run_projection(memory, log) == 2500
    assert memory.position == placed(await log.read(0, limit=3000))
    assert await run_projection(memory, log) == 0
    await log.append("coordinator", [tick(2501)], 2500)
    assert await run_projection(memory, log) == 1


async def test_a_filtered_projection_catches_up_with_its_subjects() -> None:
    log = await logged(3)
    await log.append("site.a", [beat("a", 1)], 0)
    await log.append("coordinator", [tick(4)], 3)
    with Projection(":memory:", [Seen()], "r", contiguous=False) as projection:
        assert await run_projection(projection, log, ["site.a"]) == 1
        assert rows(projection) == [4]
        await projection.check(log)


async def test_a_log_that_ends_below_the_position_is_damaged(memory: Projection) -> None:
    memory.apply(await (await logged(9)).read(0))
    with pytest.raises(LogDamaged) as caught:
        await run_projection(memory, await logged(6))
    assert caught.value.sequence == 7
    assert memory.position.sequence == 9


async def test_another_event_at_the_position_is_damage(memory: Projection) -> None:
    log = await logged(5)
    memory.apply(await log.read(0))
    await memory.check(log)
    other = await logged(4)
    await other.append("coordinator", [tick(77)], 4)
    await other.append("coordinator", [tick(6)], 5)
    with pytest.raises(LogDamaged) as caught:
        await memory.check(other)
    assert caught.value.sequence == 5
    assert "another event" in caught.value.what


class Holed(MemoryLog):
    """A log from which one event vanished, as bit rot in a broker's file can hide it."""

    gone = 5

    async def at(self, sequence: int) -> Record | None:
        return None if sequence == self.gone else await super().at(sequence)

    async def read(
        self, after: int, *, subjects: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Record]:
        records = await super().read(after, subjects=subjects, limit=limit)
        return [record for record in records if record.sequence != self.gone]


async def test_a_vanished_event_stops_the_projection_before_it_is_passed(
    memory: Projection,
) -> None:
    log = Holed("r")
    for number in range(1, 9):
        await log.append("coordinator", [tick(number)], number - 1)
    with pytest.raises(LogDamaged) as caught:
        await run_projection(memory, log)
    assert caught.value.sequence == 5
    assert memory.position.sequence == 0
    memory.apply([Record(n, "coordinator", n, tick(n)) for n in range(1, 6)])
    with pytest.raises(LogDamaged) as caught:
        await memory.check(log)
    assert caught.value.sequence == 5
    assert "missing" in caught.value.what
