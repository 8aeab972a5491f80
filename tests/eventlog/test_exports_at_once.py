"""Two who export to one file at the same time: each writes a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from eventlog.chain import Record
from eventlog.export import read_export, write_export
from tests.eventlog.test_export import batched, history


async def test_two_exports_to_one_file_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    target, slow, fast = tmp_path / "run.atoll", history(), history(3)
    begun, may = asyncio.Event(), asyncio.Event()

    async def halting() -> AsyncIterator[list[Record]]:
        yield slow[:4]
        begun.set()
        await may.wait()
        yield slow[4:]

    first = asyncio.create_task(write_export("r", halting(), target))
    await begun.wait()
    await write_export("r", batched(fast), target)
    assert list(read_export(target)) == fast
    may.set()
    assert (await first).num_records == len(slow)
    assert list(read_export(target)) == slow
    assert list(tmp_path.iterdir()) == [target]
