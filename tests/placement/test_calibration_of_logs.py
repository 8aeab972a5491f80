"""`atoll place calibration` of an exported log: each job is judged by what was known when it was
intended, and only starts that an agent saw count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from eventlog.events import (
    Event,
    JobEnded,
    JobIntended,
    JobObserved,
    JobShape,
    JobSubmitted,
    PlacementProbed,
)
from eventlog.export import to_end, write_export
from eventlog.writer import Stamp
from ops import exits
from ops.cli import run
from ops.placement.estimate import MIN_OBSERVED
from tests.support.history import RUN
from tests.support.scenario import Scenario

SHAPE = JobShape(nodes=2, walltime_s=3600)
NUM_JOBS = 30
SAID_S, WAIT_S = 3600, 7200  # what the probe said, and what it always took


def lives(number: int) -> list[Event]:
    """A job that starts an hour later than probed, and ends; the last one never starts."""
    at = 1_000_000 + number * 100_000
    name, job_id = f"j-{number}", str(number + 1)
    told: list[Event] = [
        PlacementProbed(
            shape=SHAPE, outcome="estimated", start_epoch_s=at + SAID_S, asked_epoch_s=at
        ),
        JobIntended(job_name=name, shape=SHAPE, reason="it helps", at_epoch_s=at),
        JobSubmitted(job_name=name, job_id=job_id),
    ]
    if number < NUM_JOBS - 1:
        seen = JobObserved(
            job_name=name, job_id=job_id, phase="running", nodes=2, walltime_s=3600,
            started_epoch_s=at + WAIT_S,
        )  # fmt: skip
        told += [seen, JobEnded(job_name=name, job_id=job_id, outcome="walltime")]
    return told


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The run, exported."""
    made = Scenario()
    for number in range(NUM_JOBS):
        for event in lives(number):
            assert made.append("agent.lumi", [event], Stamp()) == [""]
    path = tmp_path / "run.atoll"
    asyncio.run(write_export(RUN, to_end(made.log), path))
    return path


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
