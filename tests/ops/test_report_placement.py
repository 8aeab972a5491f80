"""The report on queues: jobs and forecasts as the log and `atoll place calibration` tell them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.events import JobIntended
from ops.cli import run
from ops.placement.estimate import MIN_OBSERVED
from ops.report import made, placing
from tests.support.queued import SAID_S, START, Told, job, log_of


def at_two_centres(num: int = 24) -> list[Told]:
    """Chains of jobs at two centres: waits of half an hour to some hours; one that fails, and one
    that still waits."""
    draw = Random(7)
    told: list[Told] = []
    for site in ("lumi", "snellius"):
        at = 60
        for number in range(num):
            wait_s = int(SAID_S * draw.uniform(0.6, 3.0))
            outcome = "failed" if (site, number) == ("lumi", 5) else "walltime"
            told += job(site, number, at, wait_s, outcome)
            at += wait_s + 7200
        told += job(site, num, at, None)
    return told


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_of(at_two_centres(), tmp_path_factory.mktemp("queued"))


@pytest.fixture(scope="module")
def facts(log: Path) -> dict[str, Any]:
    return made.of_file(log, lambda *_: None)


def test_forecasts_are_those_that_place_calibration_judges(
    log: Path, facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["place", "calibration", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = facts["queues"]
    assert found["bounds"] == told["bounds"] and len(told["bounds"]) == 2
    assert len(found["starts"]) == told["forecasts"] == 48
    assert found["from_prior"] == told["from_prior"] == 2 * MIN_OBSERVED
    assert sum(one["prior"] for one in found["starts"]) == found["from_prior"]


def test_jobs_stand_where_the_log_has_them(facts: dict[str, Any]) -> None:
    jobs = {one["job"]: one for one in facts["queues"]["jobs"]}
    assert len(jobs) == 50
    intents = [event for _, _, event in at_two_centres() if isinstance(event, JobIntended)]
    for intent in intents:
        one = jobs[intent.job_name]
        assert one["since_s"] == (intent.at_epoch_s or 0) - START
        assert one["expected_s"] == one["since_s"] + SAID_S
    started = [one for one in jobs.values() if one["started_s"] is not None]
    assert all(one["started_s"] - one["since_s"] == one["wait_s"] for one in started)
    assert {one["state"] for one in jobs.values()} == {"walltime", "failed", "submitted"}
    waits = {one["job"]: one["wait_s"] for one in facts["queues"]["starts"]}
    assert waits == {one["job"]: one["wait_s"] for one in started}


def test_a_share_of_the_curve_is_the_share_of_starts_within_that_bound(
    facts: dict[str, Any],
) -> None:
    found = facts["queues"]
    for name, prior in (("curve", False), ("prior_curve", True)):
        some = [one for one in found["starts"] if one["prior"] == prior]
        shares = dict(found[name])
        for level, bound in ((0.1, "low_s"), (0.5, "said_s"), (0.9, "high_s")):
            held = sum(one["wait_s"] <= one[bound] for one in some)
            assert shares[level] == pytest.approx(held / len(some)), (name, level)


def test_the_page_has_both_pictures_and_the_bounds(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(log), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "How jobs came by nodes" in text and "starts within a bound" in text
    (nine,) = [one for one in made.of_file(log, lambda *_: None)["queues"]["bounds"]][1:]
    assert f"90% bound: {nine['share']:.1%} started within it" in text
    assert "lumi-5" in text and "failed" in text


def test_a_job_that_is_to_begin_later_waits_from_then_on(tmp_path: Path) -> None:
    told: list[Told] = []
    for at, site, event in job("lumi", 0, 60, 5400):
        later = {"not_before_epoch_s": START + 60 + 3600}
        changed = event.model_copy(update=later) if isinstance(event, JobIntended) else event
        told.append((at, site, changed))
    (one,) = made.of_file(log_of(told, tmp_path), lambda *_: None)["queues"]["jobs"]
    assert (one["since_s"], one["started_s"], one["wait_s"]) == (3660, 5460, 1800)


def test_where_no_job_has_started_there_is_nothing_to_judge(tmp_path: Path) -> None:
    file = log_of([*job("lumi", 0, 60, None), *job("lumi", 1, 90, None)], tmp_path)
    facts = made.of_file(file, lambda *_: None)
    found = facts["queues"]
    assert (found["starts"], found["bounds"], found["curve"]) == ([], [], [])
    shown = "".join(placing.pictures(facts))
    assert "Jobs of each site" in shown and "Forecasts" not in shown
    assert "no bound to judge yet" in "".join(placing.sections(facts))


def test_without_agents_the_report_says_nothing_of_queues(tmp_path: Path) -> None:
    facts = made.of_file(log_of([], tmp_path), lambda *_: None)
    assert facts["queues"] == {} and not placing.pictures(facts)
    assert not list(placing.sections(facts))
