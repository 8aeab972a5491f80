"""Two copies of a log: equal, one behind, or named where they first differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from eventlog.chain import Record
from eventlog.export import write_export
from ops.cli import run
from ops.copies import compare, of_file

RECORDS = [Record(n, "coordinator", 1_700_000_000_000_000_000 + n, b"%d" % n) for n in range(1, 9)]


def written(path: Path, records: list[Record]) -> Path:
    async def batches() -> AsyncIterator[list[Record]]:
        yield records

    asyncio.run(write_export("a-run", batches(), path))
    return path


async def test_equal_copies_are_equal_and_a_shorter_one_is_only_behind(tmp_path: Path) -> None:
    whole = await asyncio.to_thread(written, tmp_path / "whole", RECORDS)
    part = await asyncio.to_thread(written, tmp_path / "part", RECORDS[:5])
    same = await compare("a-run", of_file(whole), of_file(whole))
    assert (same.common, same.first, same.second, same.problem) == (8, 8, 8, "")
    for first, second, ends in ((whole, part, (8, 5)), (part, whole, (5, 8))):
        found = await compare("a-run", of_file(first), of_file(second))
        assert (found.common, (found.first, found.second), found.problem) == (5, ends, "")


@pytest.mark.parametrize(
    ("field", "value"), [("subject", "operator"), ("time_ns", 5), ("payload", b"other")]
)
@pytest.mark.parametrize("at", [1, 4, 8])
def test_the_first_difference_is_named(tmp_path: Path, at: int, field: str, value: object) -> None:
    other = [replace(one, **{field: value}) if one.sequence >= at else one for one in RECORDS]
    files = written(tmp_path / "one", RECORDS), written(tmp_path / "two", other)
    found = asyncio.run(compare("a-run", *map(of_file, files)))
    assert found.common == at - 1
    assert f"sequence {at} in {field}" in found.problem
    assert run(["log", "verify", *map(str, files)]) == 1


def test_damage_of_a_copy_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole, cut = written(tmp_path / "whole", RECORDS), tmp_path / "cut"
    cut.write_bytes(whole.read_bytes()[:-40])
    assert run(["log", "verify", str(whole), str(cut)]) == 1
    assert "second copy is damaged" in capsys.readouterr().out
    part = written(tmp_path / "part", RECORDS[:3])
    for files in ((part, cut), (cut, part)):
        assert run(["log", "verify", *map(str, files)]) == 1, "also behind the other's end"
        assert "copy is damaged" in capsys.readouterr().out
    assert run(["log", "verify", str(whole), str(whole)]) == 0
    assert run(["log", "verify", "a-run"]) == 2
    assert run(["log", "verify", str(whole), "--mirror"]) == 2
