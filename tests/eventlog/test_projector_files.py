"""Projections in files: one owner, no trust in what is of another make, and no torn state."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog.chain import start
from eventlog.errors import LockHeld
from eventlog.projector import Fold, Position, Projection
from tests.eventlog.folds import Odd, Seen, history, placed, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "projections" / "r.sqlite"


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
from tests.eventlog.folds import Seen, history

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
