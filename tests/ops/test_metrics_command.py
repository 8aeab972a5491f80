"""`atoll metrics`: the same points as JSON lines, TensorBoard's files, an offline wandb run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli import run
from tests.leases.stories import whole_run
from tests.ops.test_audit_command import exported


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return exported(whole_run(), tmp_path)


def jsonl(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stored(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format behind a head of seven bytes (chunks of
    crc, length and kind: whole, first, middle, last, in blocks of 32 KiB)."""
    content, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts = parts * (kind in (3, 4)) + content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts


def test_points_go_to_a_file_of_json_lines(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "points.jsonl"
    for _ in range(2):  # it is made anew, not added to
        assert run(["metrics", str(log), "--jsonl", str(target)]) == 0
    found = jsonl(target)
    tokens = [(one["step"], one["value"]) for one in found if one["name"] == "train/tokens"]
    assert tokens == [(1, 96), (2, 128), (3, 176)]
    assert all(set(one) == {"name", "value", "step", "time"} for one in found)


def test_tensorboard_reads_the_same_points(log: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    target = tmp_path / "tb"
    places = ["--tensorboard", str(target), "--jsonl", str(tmp_path / "points")]
    for _ in range(2):
        assert run(["metrics", str(log), *places]) == 0
    events = EventAccumulator(str(target), {"scalars": 0})
    events.Reload()
    expected: dict[str, list[tuple[object, object]]] = {}
    for one in jsonl(tmp_path / "points"):
        expected.setdefault(str(one["name"]), []).append((one["step"], one["value"]))
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, points in expected.items():
        scalars = events.Scalars(name)
        assert [one.step for one in scalars] == [step for step, _ in points]
        assert [one.value for one in scalars] == pytest.approx([value for _, value in points])


def test_wandb_gets_the_same_points_offline(log: Path, tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    target = tmp_path / "wandb"
    assert run(["metrics", str(log), "--wandb", str(target)]) == 0
    (file,) = target.glob("wandb/offline-run-*/*.wandb")
    tokens = []
    for data in stored(file):
        record = Record()
        record.ParseFromString(data)
        items = record.history.item
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
        if "train/tokens" in row:
            tokens.append((row["step"], row["train/tokens"]))
    assert tokens == [(1, 96), (2, 128), (3, 176)]


def test_somewhere_to_write_is_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", str(log)]) == 2
    assert "say where to" in capsys.readouterr().err
    assert run(["metrics", str(log), "--jsonl", "x", "--follow"]) == 2
    assert "a file does not go on" in capsys.readouterr().err
