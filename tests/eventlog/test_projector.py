"""Projections: rows and position stand and fall together, and the log is checked against them."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from eventlog.chain import Record, extend, start
from eventlog.codec import Entry
from eventlog.errors import LockHeld, LogDamaged
from eventlog.memory_log import MemoryLog
from eventlog.projector import Fold, Position, Projection, run_projection
from tests.contract.events import beat, tick


class Seen:
    """Notes every event's sequence and subject, and how many there are, in two tables."""

    name = "seen"
    schema_version = 1
    bug_at = 0  # the sequence at which this fold raises, after it has written

    def create(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE seen (sequence INTEGER PRIMARY KEY, subject TEXT, type TEXT)")
        db.execute("CREATE TABLE total (number INTEGER)")
        db.execute("INSERT INTO total VALUES (0)")

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        record, kind = entry.record, entry.event.type if entry.event else ""
        db.execute("INSERT INTO seen VALUES (?, ?, ?)", (record.sequence, record.subject, kind))
        db.execute("UPDATE total SET number = number + 1")
        if record.sequence == self.bug_at:
            raise RuntimeError("a bug in the fold")
        return entry.problem


class Odd:
    """Voids every event of an odd sequence; has nothing to keep."""

    name = "odd"
    schema_version = 1

    def create(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE odd (sequence)")

    def apply(self, db: sqlite3.Connection, entry: Entry) -> str:
        return "odd" if entry.record.sequence % 2 else ""


def history(num_events: int, first: int = 1) -> list[Record]:
    return [
        Record(number, "coordinator", number, tick(number, f"e{number}"))
        for number in range(first, first + num_events)
    ]


def rows(projection: Projection) -> list[int]:
    """Sequences folded; checks that the counter in the other table agrees."""
    found = [row[0] for row in projection.db.execute("SELECT sequence FROM seen ORDER BY 1")]
    assert projection.db.execute("SELECT number FROM total").fetchall() == [(len(found),)]
    return found


def placed(records: Sequence[Record]) -> Position:
    """The position behind these records, from the definition of the chain."""
    digest = start("r")
    for record in records:
        digest = extend(digest, record)
    return Position(records[-1].sequence, records[-1].digest(), digest.hex())


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


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["run", "version", "folds", "contiguous"])
def test_a_file_made_otherwise_is_built_anew_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    with Projection(path, [Seen()], "r") as projection:
        projection.apply(history(3))
    fold = Seen()
    fold.schema_version = 2 if change == "version" else 1
    run = "other" if change == "run" else "r"
    folds: list[Fold] = [fold, Odd()] if change == "folds" else [fold]
    with (
        caplog.at_level(logging.WARNING),
        Projection(path, folds, run, contiguous=change != "contiguous") as projection,
    ):
        assert projection.position == Position(0, "", start(run).hex())
        assert rows(projection) == []
    assert "built anew" in caplog.text


@pytest.mark.parametrize("harm", ["text", "empty", "middle", "cut", "row"])
def test_a_damaged_file_is_built_anew(
    path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    with Projection(path, [Seen()], "r") as projection:
        projection.apply(history(2000))
        if harm == "row":
            projection.db.execute("DELETE FROM projection_position")
    content = path.read_bytes()
    half = len(content) // 8192 * 4096
    harmed = {
        "text": b"this is no database" * 1000,
        "empty": b"",
        "middle": content[:4096] + b"\xff" * (half - 4096) + content[half:],
        "cut": content[:half],
        "row": content,
    }
    path.write_bytes(harmed[harm])
    with caplog.at_level(logging.WARNING), Projection(path, [Seen()], "r") as projection:
        assert (rows(projection), projection.position.sequence) == ([], 0)
        projection.apply(history(3))
    assert "built anew" in caplog.text
    caplog.clear()
    with Projection(path, [Seen()], "r") as projection:
        assert rows(projection) == [1, 2, 3]
    assert caplog.text == ""


def test_a_file_belongs_to_one_at_a_time(path: Path) -> None:
    with Projection(path, [Seen()], "r"), pytest.raises(LockHeld, match="in use"):
        Projection(path, [Seen()], "r")
    Projection(path, [Seen()], "r").close()


FOLDER = """
import sys
from pathlib import Path
from eventlog.projector import Projection
from tests.eventlog.test_projector import Seen, history

projection = Projection(Path(sys.argv[1]), [Seen()], "r")
while True:
    projection.apply(history(50, projection.position.sequence + 1))
    print(projection.position.sequence, flush=True)
"""


def test_a_killed_process_leaves_rows_that_match_their_position(path: Path) -> None:
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", FOLDER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        told += map(int, process.stdout.read().split())
        process.wait()
        with Projection(path, [Seen()], "r") as projection:
            sequence = projection.position.sequence
            assert rows(projection) == list(range(1, sequence + 1))
            assert sequence >= told[-1] >= 250
            assert projection.position == placed(history(sequence))


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
