"""`atoll log` on files: what is shown, and that any damage is named at its first sequence."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest

from eventlog.blobs import digest_file
from eventlog.chain import Record, extend, start
from eventlog.codec import decode, pack
from eventlog.dir_blobs import DirBlobs
from eventlog.events import (
    BlobsReleased,
    BlockCompleted,
    CoordinatorElected,
    CoordinatorTick,
    LeaseGranted,
)
from eventlog.export import read_export, to_end
from eventlog.memory_log import MemoryLog
from ops import logfile
from ops.cli import run
from tests.contract.events import payload

TIME_NS = 1_764_432_000_123_456_789  # 2025-11-29T16:00:00.123456 UTC
EVENTS = [
    ("coordinator", CoordinatorElected(holder="here", reason="nobody holds the term")),
    ("coordinator", CoordinatorTick(tick=1)),
    (
        "site.a",
        BlockCompleted(epoch=0, block=1, lease=(1, "c"), loss=float("nan"), seconds=0.5),
    ),
    (
        "coordinator",
        LeaseGranted(
            incarnation=(2, "b" * 32), site="a", epoch=0, blocks=(4, 9), reason="fair share"
        ),
    ),
]


def a_log(num_events: int = len(EVENTS)) -> MemoryLog:
    """A log of the run `tests` with real events, the broker's clock at a known time."""
    log = MemoryLog("tests", clock_ns=lambda: TIME_NS)

    async def fill() -> None:
        for n, (subject, event) in enumerate(EVENTS[:num_events], start=1):
            name = f"{n:032}"
            last = await log.last(subject)
            data = payload(event, n, subject=subject, name=name)
            await log.append(subject, [data], last.sequence if last else 0)

    asyncio.run(fill())
    return log


def exported(folder: Path, log: MemoryLog, name: str = "run.atoll") -> Path:
    """The log as a file."""
    asyncio.run(logfile.export(log, None, folder / name))
    return folder / name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return exported(tmp_path, a_log())


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict]:
    """What `atoll log show --json` prints."""
    assert run(["log", "show", *arguments, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_show_prints_one_documented_object_an_event(file: Path, capsys) -> None:
    objects = shown(capsys, str(file))
    assert [found["sequence"] for found in objects] == [1, 2, 3, 4]
    assert [found["type"] for found in objects][2:] == ["block.completed", "lease.granted"]
    assert [found["source"] for found in objects][2:] == ["site.a", "coordinator"]
    moment = datetime.fromisoformat(objects[0]["time"])
    assert moment.utcoffset().total_seconds() == 0
    assert moment.isoformat() == "2025-11-29T16:00:00.123456+00:00"
    assert objects[3]["data"] == {
        "incarnation": [2, "b" * 32],
        "site": "a",
        "epoch": 0,
        "blocks": [4, 9],
        "reason": "fair share",
    }


def test_a_number_that_json_lacks_is_null(file: Path, capsys) -> None:
    assert shown(capsys, str(file))[2]["data"]["loss"] is None


def test_show_selects_by_type_source_and_position(file: Path, capsys) -> None:
    def sequences(*options: str) -> list[int]:
        return [found["sequence"] for found in shown(capsys, str(file), *options)]

    assert sequences("--after", "2") == [3, 4]
    assert sequences("--source", "site.a") == [3]
    assert sequences("--type", "lease.granted", "--type", "coordinator.tick") == [2, 4]


def test_where_no_event_matches_the_type_that_was_meant_is_named(file: Path, capsys) -> None:
    for wrong in ("LeaseGranted", "lease.grantd"):
        assert run(["log", "show", str(file), "--type", wrong]) == 0
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err == "no event matches; did you mean --type lease.granted?\n"
    assert run(["log", "show", str(file), "--source", "site.nobody"]) == 0
    assert capsys.readouterr().err == "no event matches\n"


def test_a_line_for_people_has_the_reason(file: Path, capsys) -> None:
    assert run(["log", "show", str(file), "--type", "lease.granted"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:4] == ["4", "2025-11-29T16:00:00.123", "coordinator", "lease.granted"]
    assert line.endswith("incarnation=#2 site=a epoch=0 blocks=4,9 — fair share")


def test_an_event_that_cannot_be_read_is_shown_with_its_problem(tmp_path: Path, capsys) -> None:
    log = a_log(1)
    newer = {"id": "x", "type": "moon.landed", "v": 1, "run": "tests", "source": "site.a", "n": 1}
    data = pack(newer | {"at": 0.0, "data": {"feet": 2}})
    asyncio.run(log.append("site.a", [data], 0))
    found = shown(capsys, str(exported(tmp_path, log)))[-1]
    assert (found["type"], found["data"]) == ("moon.landed", {"feet": 2})
    assert "unknown type" in found["problem"]


def test_verify_states_the_digest_of_the_chain(file: Path, capsys) -> None:
    digest = start("tests")
    log = a_log()

    async def records() -> list[Record]:
        return [record async for batch in to_end(log) for record in batch]

    for record in asyncio.run(records()):
        digest = extend(digest, record)
    assert run(["log", "verify", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["last_sequence"]) == (True, 4)
    assert found["log_digest"] == digest.hex()


def test_a_changed_byte_is_named_at_its_sequence(file: Path, capsys) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(b"fair share")] ^= 1
    file.write_bytes(content)
    assert run(["log", "verify", str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["problem"]["sequence"], found["last_sequence"]) == (False, 4, 3)
    assert len(shown(capsys, str(file), code=3)) == 3


def test_a_cut_end_is_named_with_the_missing_footer(file: Path, capsys) -> None:
    file.write_bytes(file.read_bytes()[:-40])
    assert run(["log", "verify", str(file)]) == 1
    assert "footer" in capsys.readouterr().out


def test_an_import_is_the_same_history_and_can_be_repeated(
    file: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    for _ in range(2):
        assert run(["log", "import", str(file), "--json"]) == 0
        target = Path(json.loads(capsys.readouterr().out)["log_file"])
        assert target == tmp_path / "home" / "imports" / "tests" / "log.atoll"
        assert target.read_bytes() == file.read_bytes()


def test_a_longer_log_of_the_same_history_replaces_the_shorter(tmp_path: Path) -> None:
    longer, shorter = exported(tmp_path, a_log(), "longer"), exported(tmp_path, a_log(2), "shorter")
    for file, events in ((shorter, 2), (longer, 4), (shorter, 4)):
        target = logfile.import_file(file, tmp_path / "held")
        assert logfile.verify(target).last_sequence == events


def test_another_history_of_the_same_name_is_refused(tmp_path: Path, file: Path) -> None:
    other = MemoryLog("tests", clock_ns=lambda: TIME_NS + 1)
    asyncio.run(other.append("coordinator", [payload(EVENTS[0][1], name=f"{1:032}")], 0))
    target = logfile.import_file(file, tmp_path / "held")
    before = target.read_bytes()
    with pytest.raises(logfile.AnotherHistory, match="at sequence 1"):
        logfile.import_file(exported(tmp_path, other, "other"), tmp_path / "held")
    assert target.read_bytes() == before


def test_blobs_travel_with_the_log(tmp_path: Path) -> None:
    content = tmp_path / "parameters"
    content.write_bytes(bytes(range(256)) * 9000)  # 2.2 MiB: more than one chunk

    log = a_log()

    async def export_with_blobs() -> str:
        store = DirBlobs(tmp_path / "store")
        named = await store.put(content)
        await logfile.export(log, store, tmp_path / "with.atoll")
        return named.digest

    digest = asyncio.run(export_with_blobs())
    logfile.import_file(tmp_path / "with.atoll", tmp_path / "held")
    asyncio.run(DirBlobs(tmp_path / "held" / "blobs").get(digest, tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content.read_bytes()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".blobs-")] == []


class Releasing(DirBlobs):
    """A store of a run that goes on: behind the first look, a new blob takes an old one's place."""

    def __init__(self, path: Path, log: MemoryLog, old: str, new: Path) -> None:
        super().__init__(path)
        self.log, self.old, self.new = log, old, new

    async def digests(self) -> list[str]:
        found = await super().digests()
        if self.old in found:
            await self.put(self.new)
            event = BlobsReleased(blobs=(self.old,), reason="it is needed no more")
            before = await self.log.last("coordinator")
            sequence = before.sequence if before else 0
            await self.log.append(
                "coordinator", [payload(event, 99, subject="coordinator", name="9" * 32)], sequence
            )
            await self.release([self.old])
        return found


def test_blobs_that_are_released_while_an_export_goes_on_are_said_to_be_released(
    tmp_path: Path,
) -> None:
    old, new, log = tmp_path / "old", tmp_path / "new", a_log()
    old.write_bytes(b"an old delta")
    new.write_bytes(b"a snapshot")
    gone = digest_file(old).digest

    async def export_and_import() -> list[str]:
        store = Releasing(tmp_path / "store", log, gone, new)
        await store.put(old)
        await logfile.export(log, store, tmp_path / "run.atoll")
        logfile.import_file(tmp_path / "run.atoll", tmp_path / "held")
        return await DirBlobs(tmp_path / "held" / "blobs").digests()

    assert asyncio.run(export_and_import()) == [digest_file(new).digest]
    events = [decode(record).event for record in read_export(tmp_path / "run.atoll")]
    assert [one.blobs for one in events if isinstance(one, BlobsReleased)] == [(gone,)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["verify", "no-such-file"], 2, "no-such-file"),
        (["show", "No/Such.File"], 2, "no such file"),
        (["verify", __file__], 3, "is no atoll log"),
        (["import", __file__], 3, "is no atoll log"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(
    capsys, arguments: list[str], code: int, says: str
) -> None:
    assert run(["log", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
