"""The log in a file: what crashes leave, who may write, and what is never cut."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eventlog.chain import Record
from eventlog.errors import AtollError, LockHeld, LogDamaged, LogError, LogUnavailable, RunUnknown
from eventlog.export import read_export, write_export
from eventlog.file_log import FileLog
from tests.contract.events import beat, tick
from tests.contract.log_contract import collect

WRITER = """
import asyncio, sys
from pathlib import Path
from eventlog.file_log import FileLog
from tests.contract.events import tick

async def main():
    log = FileLog.create(Path(sys.argv[1]), "r")
    last = 0
    while True:
        last = await log.append("coordinator", [tick(n) for n in range(1, 8)], last)
        print(last, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.log"


async def written(path: Path) -> list[Record]:
    """A file with a single event, a batch of five, and a single one; closed."""
    log = FileLog.create(path, "r")
    await log.append("coordinator", [tick(1)], 0)
    await log.append("site.a", [beat("a", number) for number in range(1, 6)], 0)
    await log.append("coordinator", [tick(2)], 1)
    records = await log.read(0)
    await log.close()
    return records


async def reopened(path: Path) -> list[Record]:
    log = FileLog.open(path)
    records = await log.read(0)
    await log.close()
    return records


async def test_a_file_log_goes_on_where_it_was_closed(path: Path) -> None:
    records = await written(path)
    log = FileLog.open(path)
    assert log.run == "r"
    assert await log.read(0) == records
    assert await log.append("site.a", [beat("a", 6)], 6) == 8
    with pytest.raises(LogError, match="expected its last sequence"):
        await log.append("coordinator", [tick(3)], 1)
    await log.close()
    again = await reopened(path)
    assert (again[:7], len(again)) == (records, 8)


async def test_an_append_stands_wholly_or_not_at_all_wherever_the_file_is_cut(path: Path) -> None:
    records = await written(path)
    good = path.read_bytes()
    seen = set()
    for cut in sorted({*range(12 + 2 + 1 + 32, len(good), 7), len(good)}):
        path.write_bytes(good[:cut])
        reader = FileLog.open(path, read_only=True)
        assert path.stat().st_size == cut, "a reader changes nothing"
        held = await reader.read(0)
        await reader.close()
        assert await reopened(path) == held == records[: len(held)]
        assert good.startswith(path.read_bytes())
        seen.add(len(held))
    assert seen == {0, 1, 6, 7}


@pytest.mark.parametrize(("cut", "room"), [(0, 1), (0, 9), (1, 5000), (40, 0), (200, 9), (700, 9)])
async def test_room_that_a_crash_left_unwritten_is_cut_back(
    path: Path, cut: int, room: int
) -> None:
    records = await written(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - cut)
        file.write(bytes(cut + room))
    held = await reopened(path)
    assert held == records[: len(held)]
    assert len(held) in (1, 6, 7)
    log = FileLog.open(path)
    last = await log.last("coordinator")
    assert await log.append("coordinator", [tick(5)], last.sequence if last else 0) == len(held) + 1
    await log.close()
    assert len(await reopened(path)) == len(held) + 1


async def test_damage_is_never_cut_back(path: Path) -> None:
    await written(path)
    good = path.read_bytes()
    begin = 12 + 2 + 1 + 32
    for place in range(begin, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :])
        for read_only in (True, False):
            with pytest.raises(LogDamaged):
                FileLog.open(path, read_only=read_only)
        assert path.stat().st_size == len(good)
    path.write_bytes(good)
    assert len(await reopened(path)) == 7


async def test_a_file_that_changes_under_its_reader_is_noticed(path: Path) -> None:
    await written(path)
    log = FileLog.open(path, read_only=True)
    with path.open("r+b") as file:
        file.seek(12 + 2 + 1 + 32 + 5 + 7)  # the last byte of the first event's sequence
        file.write(b"\x09")
    with pytest.raises(LogDamaged) as caught:
        await log.at(1)
    assert caught.value.sequence == 1
    await log.close()


def test_a_killed_writer_loses_nothing_that_was_acknowledged(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    acknowledged = 140 + 7 * len(process.stdout.read().split())
    process.wait()
    records = asyncio.run(reopened(path))
    assert len(records) % 7 == 0
    assert acknowledged <= len(records) <= acknowledged + 7
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))


async def test_only_one_may_write_and_anybody_may_read(path: Path) -> None:
    log = FileLog.create(path, "r")
    await log.append("coordinator", [tick(1)], 0)
    with pytest.raises(LockHeld, match="in use"):
        FileLog.open(path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom eventlog.file_log import FileLog\n"
        "try: FileLog.open(Path(sys.argv[1]))\nexcept Exception as e: print(type(e).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "LockHeld"
    reader = FileLog.open(path, read_only=True)
    assert await reader.last_sequence() == 1
    await log.close()
    await FileLog.open(path).close()
    await reader.close()


async def test_a_reader_follows_what_another_writes(path: Path) -> None:
    writer = FileLog.create(path, "r")
    reader = FileLog.open(path, read_only=True)
    waiting = asyncio.create_task(collect(reader.follow(0), 3))
    await asyncio.sleep(0.05)
    await writer.append("coordinator", [tick(1)], 0)
    await writer.append("site.a", [beat("a", 1), beat("a", 2)], 0)
    assert await waiting == await writer.read(0) == await reader.read(0)
    await writer.close()
    await reader.close()


async def test_a_reader_survives_that_a_torn_append_is_cut_and_replaced(path: Path) -> None:
    records = await written(path)
    good = path.read_bytes()
    path.write_bytes(good[:-300])  # within the batch, some of its records whole
    reader = FileLog.open(path, read_only=True)
    assert await reader.read(0) == records[:1]
    log = FileLog.open(path)
    await log.append("site.b", [beat("b", 1), beat("b", 2)], 0)
    assert await reader.read(0) == await log.read(0)
    assert await reader.last_sequence() == 3
    await log.close()
    await reader.close()


async def test_a_log_open_for_reading_refuses_to_write(path: Path) -> None:
    await written(path)
    reader = FileLog.open(path, read_only=True)
    for attempt in (reader.append("coordinator", [tick(3)], 7), reader.seal()):
        with pytest.raises(LogError, match="for reading only"):
            await attempt
    await reader.close()
    with pytest.raises(LogUnavailable):
        await reader.append("coordinator", [tick(3)], 7)


async def test_a_sealed_log_is_an_export_and_stays_as_it_is(path: Path) -> None:
    records = await written(path)
    with pytest.raises(LogDamaged, match="footer"):
        list(read_export(path))
    log = FileLog.open(path)
    await log.seal()
    assert list(read_export(path)) == records
    with pytest.raises(LogError, match="sealed"):
        FileLog.open(path)
    reader = FileLog.open(path, read_only=True)
    assert reader.sealed
    assert await collect(reader.follow(2), 5) == records[2:]
    await reader.close()


async def test_an_export_opens_as_a_log(tmp_path: Path) -> None:
    records = await written(tmp_path / "r.log")

    async def batches() -> AsyncIterator[list[Record]]:
        yield records

    await write_export("r", batches(), tmp_path / "x.log")
    log = FileLog.open(tmp_path / "x.log", read_only=True)
    assert (log.run, log.sealed, log.read_only) == ("r", True, True)
    assert await log.read(0) == records
    assert await log.last("site.a") == records[5]
    await log.close()


async def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunUnknown, match="there is no log file"):
        FileLog.open(tmp_path / "nothing.log")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.log").write_bytes(b"something else")
    with pytest.raises(AtollError, match="no atoll log"):
        FileLog.open(tmp_path / "x.log")
    with pytest.raises(LogError, match="exists already"):
        FileLog.create(tmp_path / "x.log", "r")
    assert (tmp_path / "x.log").read_bytes() == b"something else"


async def test_a_disk_that_is_full_closes_the_log_and_loses_nothing_before(path: Path) -> None:
    code = """
import asyncio, resource, signal, sys
from pathlib import Path
from eventlog.errors import LogUnavailable
from eventlog.file_log import FileLog
from tests.contract.events import tick

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = FileLog.create(Path(sys.argv[1]), "r")
    await log.append("coordinator", [tick(1), tick(2)], 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
    for _ in range(2):
        try:
            await log.append("coordinator", [tick(n) for n in range(3, 13)], 2)
        except LogUnavailable as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "cannot be written" in first
    assert "is closed" in second
    assert path.stat().st_size == 700
    assert len(await reopened(path)) == 2
