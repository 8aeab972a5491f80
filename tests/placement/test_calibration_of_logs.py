"""`atoll place calibration` of an exported log: each job is judged by what was known when it was
intended, and only starts that an agent saw count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops import exits
from ops.cli import run
from ops.placement.estimate import MIN_OBSERVED
from tests.support.queued import Told, job, log_of

NUM_JOBS = 30
APART_S, WAIT_S = 100_000, 7200  # each waits four times as long as its probe said


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The run, exported; its last job never starts."""
    told: list[Told] = []
    for number in range(NUM_JOBS):
        wait_s = WAIT_S if number < NUM_JOBS - 1 else None
        told += job("lumi", number, number * APART_S, wait_s)
    return log_of(told, tmp_path)


def test_the_starts_of_a_log_are_judged(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "calibration", str(log), "--json"]) == exits.GOOD
    told = json.loads(capsys.readouterr().out)
    assert (told["forecasts"], told["from_prior"]) == (NUM_JOBS - 1, MIN_OBSERVED)
    half, most = told["bounds"]
    assert half["num"] == NUM_JOBS - 1 - MIN_OBSERVED and half["num_clusters"] == half["num"]
    assert half["share"] == most["share"] == 1.0  # it is always as late as before, to the second


def test_a_picture_shows_every_level(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    picture = tmp_path / "calibration.svg"
    assert run(["place", "calibration", str(log), "-o", str(picture)]) == exits.GOOD
    assert "level of the bound" in picture.read_text()
