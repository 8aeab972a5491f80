"""A power cut: the broker's disk stops at once, and what was not on it is gone.

The store stands on a loop-mounted ext4, which is shut down without writing anything back (the
kernel's EXT4_IOC_SHUTDOWN with NOLOGFLUSH, Documentation/filesystems/ext4): what a program wrote
and did not sync is lost, as when the power goes. Then the server is killed, the filesystem mounted
again, and whatever was acknowledged must be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.connection import connect
from broker.errors import ApiError, LinkDown
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.errors import LogUnavailable

RUN = "powered"
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, linux/ext4.h
NOLOGFLUSH = 2
DISK_BYTES = 160 << 20


class Disk:
    """A filesystem in a file, mounted at `place`."""

    def __init__(self, folder: Path) -> None:
        self.image, self.place = folder / "disk", folder / "mounted"
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.image), str(self.place))

    def unmount(self) -> None:
        run("umount", str(self.place))

    def cut(self) -> None:
        """From now on nothing reaches the disk, and nothing that waited for it does."""
        handle = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(handle)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("a power cut needs root, loop devices and ext4")
    try:
        made = Disk(tmp_path)
    except OSError as error:
        pytest.skip(f"a power cut needs root, loop devices and ext4: {error}")
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.unmount()


async def test_what_was_acknowledged_survives_a_power_cut(disk: Disk) -> None:
    stored: dict[int, bytes] = {}
    settings = ServerSettings(disk.place / "store")
    server = BrokerServer(settings, die_with_parent=True)
    server.start()
    async with await connect(server.url, name="writer") as connection:
        log = await JetStreamLog.create(connection, RUN, patience_s=2.0)
        task = asyncio.create_task(write(log, stored))
        async with asyncio.timeout(60):
            while len(stored) < 500:
                await asyncio.sleep(0.01)
        disk.cut()
        with contextlib.suppress(LogUnavailable, ApiError, LinkDown):
            await task
        await log.close()
    server.kill()
    disk.unmount()
    disk.mount()
    with BrokerServer(settings, die_with_parent=True) as again:
        async with await connect(again.url, name="reader") as connection:
            log = await JetStreamLog.open(connection, RUN)
            found = {one.sequence: one.payload for one in await log.read(0, limit=1_000_000)}
            assert stored.items() <= found.items()
            await log.close()
    assert len(stored) >= 500


async def write(log: JetStreamLog, stored: dict[int, bytes]) -> None:
    """Append for ever, singly and in batches; remember what was acknowledged."""
    last = number = 0
    while True:
        number += 1
        bodies = [b"%d-%d" % (number, part) for part in range(1 + number % 3)]
        last = await log.append("coordinator", bodies, last)
        first = last - len(bodies) + 1
        stored |= {first + index: body for index, body in enumerate(bodies)}
