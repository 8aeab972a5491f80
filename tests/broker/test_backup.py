"""A backup of a log is taken while it is written, and puts a damaged one back as it was (R19)."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from broker import holdings
from broker.backup import back_up, restore_backup
from broker.connection import connect
from broker.jetstream_log import JetStreamLog
from eventlog.errors import LockHeld, LogDamaged, RunUnknown
from tests.broker.test_repair import (
    DAMAGES,
    NUM,
    RUN,
    Damage,
    block,
    goes_on,
    gone,
    read,
    served,
    written,
)
from tests.contract.events import tick
from tests.support.secured import secured


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
async def test_r19_a_damaged_log_is_restored_from_a_backup_with_sequences_and_times(
    damage: Damage, tmp_path: Path
) -> None:
    folder, file = tmp_path / "store", tmp_path / "hurt.backup"
    with served(folder) as server:
        before = await written(server.url, mirrored=False)
        holdings.write(folder, holdings.look(server.monitor_url))
        made = await back_up(folder, RUN, file)
        assert made.last_sequence == NUM
        with pytest.raises(LockHeld):
            await restore_backup(folder, RUN, file, [])
    damage(folder)
    done = await restore_backup(folder, RUN, file, before)
    assert (done.last_sequence, done.log_digest) == (NUM, made.log_digest)
    await goes_on(folder, before)
    assert (done.aside == "") == (damage is gone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hurt.backup", "store"]


async def test_a_backup_under_load_holds_all_that_was_acknowledged_when_it_began(
    tmp_path: Path,
) -> None:
    """With permissions and TLS, in the account that streams have to themselves there."""
    with secured(tmp_path / "broker") as broker:
        folder = broker.server.settings.store_dir
        async with await broker.connect("operator") as operator:
            log = await JetStreamLog.create(operator, RUN)
            last, backups = 0, []

            async def write() -> None:
                nonlocal last
                async with await broker.connect("coordinator") as connection:
                    own = await JetStreamLog.open(connection, RUN)
                    while len(backups) < 3:
                        last = await own.append("coordinator", [tick(last + 1)], last)
                    await own.close()

            async def save() -> None:
                for number in range(3):
                    acknowledged = last
                    file = tmp_path / f"{number}.backup"
                    backups.append((acknowledged, file, await back_up(folder, RUN, file)))

            await asyncio.gather(write(), save())
            records = await log.read(0, limit=10 * last)
            await log.close()
        broker.server.stop()
        assert len(records) == last > 0
        for acknowledged, file, made in backups:
            assert acknowledged <= made.last_sequence <= last
            done = await restore_backup(folder, RUN, file, records[: made.last_sequence], lose=True)
            assert done.last_sequence == made.last_sequence


async def test_a_backup_that_is_older_than_the_log_is_not_put_back_in_silence(
    tmp_path: Path,
) -> None:
    folder, file = tmp_path / "store", tmp_path / "hurt.backup"
    with served(folder) as server:
        await written(server.url, mirrored=False)
        await back_up(folder, RUN, file)
        async with await connect(server.url, name="writer") as connection:
            log = await JetStreamLog.open(connection, RUN)
            await log.append("coordinator", [tick(NUM + 1)], NUM)
            await log.close()
        holdings.write(folder, holdings.look(server.monitor_url))
    gone(folder)
    with pytest.raises(LogDamaged, match=f"sequence {NUM + 1}.*--lose"):
        await restore_backup(folder, RUN, file, [])
    assert (await restore_backup(folder, RUN, file, [], lose=True)).last_sequence == NUM


async def test_a_damaged_backup_is_named_and_changes_nothing(tmp_path: Path) -> None:
    folder, file = tmp_path / "store", tmp_path / "hurt.backup"
    with served(folder) as server:
        before = await written(server.url, mirrored=False)
        await back_up(folder, RUN, file)
    whole = file.read_bytes()
    for name, data in broken(whole).items():
        file.write_bytes(data)
        with pytest.raises(LogDamaged):
            await restore_backup(folder, RUN, file, [])
            pytest.fail(f"taken: {name}")
    file.write_bytes(whole)
    other = [*before[:-1], before[0]]
    with pytest.raises(LogDamaged, match="another event"):
        await restore_backup(folder, RUN, file, other)
    with pytest.raises(LogDamaged, match="of run hurt, not of other"):
        await restore_backup(folder, "other", file, [])
    with served(folder) as server:
        assert await read(server.url) == before
    assert not (folder / "damaged").exists()


def broken(whole: bytes) -> dict[str, bytes]:
    """A backup with a bit flipped in its messages, cut, without its card, with a way out of the
    folder, and something else."""
    found = {"cut": whole[: len(whole) * 2 // 3], "empty": b"", "text": b"no backup"}
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    found["flipped"] = bytes(flipped)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        parts = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    card = json.loads(parts["backup.json"])
    found["no card"] = packed({name: data for name, data in parts.items() if name != "backup.json"})
    found["outside"] = packed({**parts, "../../outside.blk": b"x"})
    found["card"] = packed({**parts, "backup.json": b"[]"})
    less = json.dumps(card | {"last_sequence": card["last_sequence"] - 1}).encode()
    found["less"] = packed({**parts, "backup.json": less})
    return found


def packed(parts: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def test_a_store_that_is_damaged_gives_no_backup(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with served(folder) as server:
        await written(server.url, mirrored=False)
        holdings.write(folder, holdings.look(server.monitor_url))
    os.truncate(block(folder), block(folder).stat().st_size // 2)
    with pytest.raises(LogDamaged):
        await back_up(folder, RUN, tmp_path / "hurt.backup")
    with pytest.raises(RunUnknown):
        await back_up(folder, "other", tmp_path / "hurt.backup")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


async def test_what_a_killed_backup_left_is_swept_and_what_one_at_work_has_is_not(
    tmp_path: Path,
) -> None:
    folder, place = tmp_path / "store", tmp_path / "backups"
    with served(folder) as server:
        await written(server.url, mirrored=False)
    left, at_work, other = (place / name for name in (".backup-00000000", ".backup-1111aaaa", "b"))
    for one in (left, at_work, other):
        (one / "streams").mkdir(parents=True)
        os.utime(one, (0, 0))
    handle = os.open(at_work, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    await back_up(folder, RUN, place / "file")
    os.close(handle)
    assert sorted(path.name for path in place.iterdir()) == [".backup-1111aaaa", "b", "file"]
