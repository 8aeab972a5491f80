"""`atoll bench failover`: what it promises to measure, and against which limits."""

from __future__ import annotations

import pytest

from ops.bench.failover import Found, measures
from tests.support.benches import quick

LIMITS = {
    "failover": ("K ticks plus 1 s", 5.0),
    "survivor stall": ("the lease plus 1 s", 5.0),
    "survivor stall, blocks left": ("one inner step", 0.25),
    "restart": ("15 s, without the transfer", 15.0),
}


def test_each_measure_is_held_against_its_limit_by_the_median_of_the_trials() -> None:
    found = Found(
        failover=[4.0, 4.5, 9.0],
        stall=[1.0, 5.5, 6.0],
        left=[0.0, 0.01, 0.9],
        steps=[0.25, 0.25, 0.25],
        restart=[3.0, 15.0, 16.0],
        transfer=[0.5],
        imports=[2.0],
    )
    said = {one.what: one.as_json() for one in measures(found, lease_s=4.0)}
    assert {what: (said[what]["against"], said[what]["against_value"]) for what in LIMITS} == LIMITS
    assert {what: said[what]["value"] for what in LIMITS} == {
        "failover": 4.5,
        "survivor stall": 5.5,
        "survivor stall, blocks left": 0.01,
        "restart": 15.0,
    }
    assert [said[what]["met"] for what in LIMITS] == [True, False, True, True]
    assert said["survivor stall"]["ratio"] == 1.1
    assert {said[what]["target"] for what in LIMITS} == {"≤ 1×"}
    assert said["restart, its imports"]["value"] == 2.0


@pytest.mark.soak
def test_the_quick_bench_measures_everything_within_its_limits() -> None:
    report = quick("failover")
    assert (report["name"], report["runs"]) == ("failover", 1)
    said = {one["what"]: one for one in report["measures"]}
    assert set(LIMITS) < set(said)
    for what in LIMITS:
        one = said[what]
        assert one["ratio"] == one["value"] / one["against_value"]
        assert one["ratio"] <= 1, report
    assert 0 < said["restart, its imports"]["value"] < said["restart"]["value"]
