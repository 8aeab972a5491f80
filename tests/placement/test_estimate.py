"""Estimates: bounds cover what they say, through drift; a prior before that; outages reset."""

from __future__ import annotations

from math import exp, inf
from random import Random

import pytest

from ops.placement.conformal import LEVELS, Scores
from ops.placement.coverage import Observation, coverage, judged
from ops.placement.estimate import MIN_OBSERVED, Estimator, Features, given
from ops.placement.shapes import Basis, WaitEstimate


def past(num: int, drift: float = 0.0, seed: int = 0) -> list[Observation]:
    """A queue that says something and is wrong by a factor, which grows over time by `drift`."""
    random, found = Random(seed), []
    for k in range(num):
        said_s = random.expovariate(1 / 7200) + 61
        wait_s = said_s * exp(random.gauss(0.5 + drift * k / num, 1.0))
        found.append(Observation(3600.0 * k, Features(probe_s=said_s), wait_s, k // 10))
    return found


@pytest.mark.parametrize("drift", [0.0, 2.0])
def test_bounds_cover_what_they_say_though_the_queue_drifts(drift: float) -> None:
    found = list(judged(past(4000, drift), Estimator()))
    half, most = coverage(found, since_s=3600.0 * 1000)
    assert abs(half.share - 0.5) < 0.04
    assert abs(most.share - 0.9) < 0.025
    assert half.low < half.share < half.high and half.num_clusters == 300


def test_a_forecast_knows_nothing_of_starts_after_it() -> None:
    slow = [Observation(10.0 * k, Features(), 1e6, k) for k in range(50)]
    assert {one.forecast.estimate.basis for one in judged(slow, Estimator())} == {Basis.PRIOR}


def test_without_history_there_is_a_prior_that_says_so() -> None:
    estimator = Estimator()
    now = estimator.forecast(Features(probe_s=0.0)).estimate
    later = estimator.forecast(Features(probe_s=7200.0)).estimate
    nothing = estimator.forecast(Features()).estimate
    assert {now.basis, later.basis, nothing.basis} == {Basis.PRIOR}
    assert now.median_s < later.median_s == pytest.approx(7200.0)
    assert "prior" in now.text and now.num_observed == 0


def test_the_bias_of_a_site_is_learnt_and_an_outage_forgets_it() -> None:
    estimator = Estimator()
    for k in range(60):
        forecast = estimator.forecast(Features(probe_s=3600.0))
        estimator.observe(forecast, 36_000.0 + k)
    learnt = estimator.forecast(Features(probe_s=3600.0)).estimate
    assert learnt.basis is Basis.CALIBRATED and learnt.num_observed == 60
    assert learnt.q(0.5) == pytest.approx(36_000.0, rel=0.01)
    estimator.reset()
    assert estimator.forecast(Features(probe_s=3600.0)).estimate.basis is Basis.PRIOR


def test_few_starts_give_no_more_certainty_than_they_can() -> None:
    scores = Scores()
    for k in range(MIN_OBSERVED):
        scores.add(float(k))
    found = scores.quantiles()
    assert found[LEVELS.index(0.5)] == 4.0  # rank ceil(9 · 0.5) = 5
    assert found[LEVELS.index(0.9)] == inf  # rank 9 of 8


def test_a_job_that_still_waits_fails_the_bounds_it_has_passed_once() -> None:
    estimator = Estimator(rate=0.1)
    for _ in range(20):
        estimator.observe(estimator.forecast(Features(probe_s=3600.0)), 3600.0)
    before = estimator.forecast(Features(probe_s=3600.0))
    estimator.overdue(before, 1e6)
    estimator.overdue(before, 2e6)
    after = next(iter(estimator._kinds.values())).steered
    others = Estimator(rate=0.1)
    for _ in range(20):
        others.observe(others.forecast(Features(probe_s=3600.0)), 3600.0)
    others.overdue(others.forecast(Features(probe_s=3600.0)), 1e6)
    assert after == next(iter(others._kinds.values())).steered
    assert before.num_judged == 0


def test_what_is_left_of_a_wait_is_conditional_on_what_has_passed() -> None:
    even = WaitEstimate((0.0001, 1.0), (0.0, 1000.0), Basis.CALIBRATED)
    assert even.p(250.0) == pytest.approx(0.25, abs=1e-3)
    left = given(even, 500.0)  # uniform on [500, 1000] from now: [0, 500]
    assert left.q(1.0) == pytest.approx(500.0, rel=0.01)
    assert given(even, 0.0).q(1.0) == pytest.approx(1000.0, rel=0.01)
    assert given(even, 5000.0).q(1.0) == pytest.approx(5000.0)  # as long again
