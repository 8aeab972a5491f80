"""A broker whose files were damaged: what it says when it starts, and how it is put right (R19).

The damage is done to the store of a real server: a block of messages flipped, cut or removed, the
index removed, a whole stream gone. The log then either still gives every event, or says at start or
at reading what it lacks; and the copy puts it back, event by event as it was.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import holdings
from broker.connection import connect
from broker.errors import BrokerUnfit
from broker.jetstream_log import JetStreamLog
from broker.repair import check_apart, drop_copy, restore
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.chain import Record
from eventlog.errors import LogDamaged, LogUnavailable, RunUnknown
from eventlog.export import to_end
from tests.contract.events import tick

RUN = "hurt"
NUM = 400
Damage = Callable[[Path], None]


def served(folder: Path) -> BrokerServer:
    return BrokerServer(ServerSettings(folder), die_with_parent=True)


def stream(folder: Path, name: str = "ATOLL_HURT") -> Path:
    return folder / "jetstream" / "$G" / "streams" / name


async def read(url: str) -> list[Record]:
    """All of the log, as any reader of it gets it."""
    async with await connect(url, name="reader") as connection:
        log = await JetStreamLog.open(connection, RUN)
        return [record async for records in to_end(log) for record in records]


async def written(url: str, *, mirrored: bool = True) -> list[Record]:
    """A log of NUM events, and a second copy that has them all."""
    async with await connect(url, name="writer") as connection:
        log = await JetStreamLog.create(connection, RUN)
        last = 0
        for number in range(0, NUM, 100):
            ticks = [tick(k) for k in range(number + 1, number + 101)]
            last = await log.append("coordinator", ticks, last)
        if mirrored:
            mirror = await JetStreamLog.mirror(connection, RUN, create=True)
            async with asyncio.timeout(60):
                while await mirror.last_sequence() < NUM:
                    await asyncio.sleep(0.05)
        return [record async for records in to_end(log) for record in records]


def block(folder: Path) -> Path:
    return sorted((stream(folder) / "msgs").glob("*.blk"))[0]


def flipped(folder: Path) -> None:
    """One bit in the middle of the messages."""
    path = block(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(folder: Path) -> None:
    """The last third of the messages."""
    os.truncate(block(folder), block(folder).stat().st_size * 2 // 3)


def without_index(damage: Damage) -> Damage:
    """The damage, and the server's own index gone as well: it reads what is there."""

    def both(folder: Path) -> None:
        damage(folder)
        for path in (stream(folder) / "msgs").glob("index.db"):
            path.unlink()

    both.__name__ = f"{damage.__name__}, no index"
    return both


def removed(folder: Path) -> None:
    """All the messages."""
    block(folder).unlink()


def index_cut(folder: Path) -> None:
    """The index alone, which the messages make up for."""
    path = stream(folder) / "msgs" / "index.db"
    os.truncate(path, path.stat().st_size // 2)


def gone(folder: Path) -> None:
    """The whole stream."""
    shutil.rmtree(stream(folder))


DAMAGES = [
    *(flipped, cut, removed, index_cut, gone),
    *(without_index(one) for one in (flipped, cut, removed)),
]


async def goes_on(folder: Path, before: list[Record]) -> None:
    """A log that was put back is served, is what it was, and takes the next event."""
    with served(folder) as server:
        holdings.check(folder, holdings.look(server.monitor_url))
        assert await read(server.url) == before
        async with await connect(server.url, name="writer") as connection:
            log = await JetStreamLog.open(connection, RUN)
            assert await log.append("coordinator", [tick(NUM + 1)], NUM) == NUM + 1
            await log.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
async def test_r19_damage_is_named_at_start_or_at_reading_and_restored_from_the_copy(
    damage: Damage, folder: Path
) -> None:
    with served(folder) as server:
        before = await written(server.url)
        holdings.check(folder, holdings.look(server.monitor_url))
    damage(folder)
    said = ""
    try:
        with served(folder) as server:
            holdings.check(folder, holdings.look(server.monitor_url))
            assert await read(server.url) == before, "what is given must be what was there"
    except (LogDamaged, LogUnavailable, RunUnknown, BrokerUnfit) as error:
        said = str(error)
    assert bool(said) == (damage is not index_cut), said
    done = await restore(folder, RUN, before)
    assert done.last_sequence == NUM
    await goes_on(folder, before)
    assert (done.aside == "") == (damage is gone)
    assert done.aside == "" or Path(done.aside).is_dir()


async def test_r19_what_no_copy_has_is_not_given_up_in_silence(folder: Path) -> None:
    with served(folder) as server:
        before = await written(server.url)
        held = holdings.look(server.monitor_url)["ATOLL_HURT"]
        later = holdings.Held(1, held.last + 5, held.num + 5)  # as if appended after the copy
        holdings.write(folder, {"ATOLL_HURT": later})
    gone(folder)
    with pytest.raises(LogDamaged, match=f"sequence {NUM + 1}.*--lose"):
        await restore(folder, RUN, before)
    ahead = [*before, Record(NUM + 1, "coordinator", 0, tick(NUM + 1))]
    with pytest.raises(LogDamaged, match="the file that proves it goes on"):
        await restore(folder, RUN, ahead, lose=True)
    other = [*before[:-1], Record(NUM, "coordinator", 0, tick(NUM))]
    with pytest.raises(LogDamaged, match=f"sequence {NUM}.*another event"):
        await restore(folder, RUN, other, lose=True)
    assert (await restore(folder, RUN, before, lose=True)).last_sequence == NUM


async def test_without_a_copy_restore_says_what_else_to_do(folder: Path) -> None:
    with served(folder) as server:
        await written(server.url, mirrored=False)
        with pytest.raises(Exception, match="a broker runs on"):
            await restore(folder, RUN, [])
    with pytest.raises(RunUnknown, match="no second copy"):
        await restore(folder, RUN, [])
    assert stream(folder).is_dir(), "nothing was changed"


MIRROR = "ATOLL_HURT_MIRROR"


@pytest.mark.parametrize("damage", ["gone", "end", "hole"])
async def test_a_damaged_second_copy_is_said_and_made_anew_and_keeps_nobody_out(
    folder: Path, damage: str
) -> None:
    with served(folder) as server:
        before = await written(server.url)
        assert holdings.check(folder, holdings.look(server.monitor_url)) == []
    messages = stream(folder, MIRROR) / "msgs"
    for path in messages.glob("index.db"):
        path.unlink()
    (path,) = messages.glob("*.blk")
    if damage == "gone":
        shutil.rmtree(stream(folder, MIRROR))
    elif damage == "end":
        os.truncate(path, path.stat().st_size * 2 // 3)
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    (said,) = check_apart(folder)
    assert f"second copy of run {RUN} is damaged" in said
    done = await drop_copy(folder, RUN)
    assert (done.last_sequence, bool(done.aside)) == (NUM, damage != "gone")
    assert check_apart(folder) == []
    with served(folder) as server:
        assert await read(server.url) == before
        async with await connect(server.url, name="writer") as connection:
            mirror = await JetStreamLog.mirror(connection, RUN, create=True)
            async with asyncio.timeout(60):
                while await mirror.last_sequence() < NUM:
                    await asyncio.sleep(0.05)
            assert [record async for records in to_end(mirror) for record in records] == before


async def test_r19_a_second_copy_is_not_dropped_where_the_log_is_damaged(folder: Path) -> None:
    with served(folder) as server:
        await written(server.url)
        holdings.write(folder, holdings.look(server.monitor_url))
    cut(folder)
    for path in (stream(folder) / "msgs").glob("index.db"):
        path.unlink()
    with pytest.raises(LogDamaged):
        await drop_copy(folder, RUN)
    assert stream(folder, MIRROR).is_dir()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"ATOLL_HURT": "x"}'])
def test_r19_a_list_of_ends_that_cannot_be_read_is_no_empty_one(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / holdings.FILE).write_text(text)
    with pytest.raises(LogDamaged, match=r"holdings\.json"):
        check_apart(folder)


def test_a_folder_that_held_nothing_yet_is_in_order(tmp_path: Path) -> None:
    assert check_apart(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_r19_what_is_wrong_with_a_log_is_told_by_its_counts() -> None:
    held = holdings.Held
    whole = {"ATOLL_A": held(1, 9, 9), "ATOLL_NEW": held(0, 0, 0)}
    assert holdings.problems({"ATOLL_A": 9}, whole) == []
    assert holdings.problems({}, whole) == []
    for wrong, sequence in (
        (held(1, 8, 8), 9),  # its end was cut off
        (held(3, 9, 7), 1),
        (held(1, 9, 8), 1),
        (held(0, 0, 0), 1),
    ):
        ((name, at, _),) = holdings.problems({"ATOLL_A": 9}, {"ATOLL_A": wrong})
        assert (name, at) == ("ATOLL_A", sequence)
    assert holdings.problems({"ATOLL_A": 9}, {})[0][:2] == ("ATOLL_A", 1)
