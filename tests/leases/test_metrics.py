"""A run's numbers by the names that people know, at the version they belong to."""

from __future__ import annotations

import math

from eventlog.codec import decode
from leases.metrics import Metric, Metrics
from tests.leases.stories import records, whole_run
from tests.leases.test_evaluators import committed, measured, story
from tests.support.scenario import Scenario


def points(run: Scenario) -> list[Metric]:
    made = Metrics()
    found = [
        point
        for record in records(run)
        for point in made.see(decode(record), run.why.get(record.sequence, ""))
    ]
    assert made.skipped == 0
    return found


def curve(found: list[Metric], name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in found if one.name == name]


def test_losses_tokens_and_leases_stand_at_the_version_that_they_led_to() -> None:
    found = points(whole_run())
    assert curve(found, "train/tokens") == [(1, 96.0), (2, 128.0), (3, 176.0)]
    assert curve(found, "train/loss") == [(1, 2.0), (2, 2.0), (3, 2.0)]
    assert curve(found, "outer/deltas") == [(1, 2.0), (2, 1.0), (3, 1.0)]
    assert curve(found, "lease/granted")[-1] == (3, 10.0)
    assert curve(found, "lease/stolen") == [(1, 0.0), (2, 1.0), (3, 1.0)]
    assert curve(found, "lease/refused") == [(1, 0.0), (2, 1.0), (3, 1.0)]
    assert curve(found, "site/live") == [(0, 1.0), (0, 2.0), (1, 1.0)]


def test_an_evaluation_stands_at_its_version_whenever_it_came() -> None:
    run = story()
    committed(run, 3)
    assert run.says("a", measured(2, 2.5)) == ""
    found = points(run)
    assert curve(found, "val/loss") == [(2, 2.5)]
    assert curve(found, "val/perplexity") == [(2, 7.4)]


def test_what_is_void_or_no_number_is_no_point() -> None:
    run = story()
    committed(run, 1)
    assert "there is no version" in run.says("a", measured(9))
    assert run.says("b", measured(1, math.nan)) == ""
    made = Metrics()
    found = [
        point.name
        for record in records(run)
        for point in made.see(decode(record), run.why.get(record.sequence, ""))
    ]
    assert "val/loss" not in found and made.skipped == 1
