"""`atoll bench placement --quick` runs through the command line and says what it promises to say.

How fast things are is not for a test to judge; that its world is one in which the planner plans is,
and the benchmark itself fails where it does not.
"""

from __future__ import annotations

from tests.support.benches import quick


def test_it_measures_a_plan_and_two_worlds_against_stated_limits() -> None:
    found = quick("placement")
    assert [one["against_value"] for one in found["measures"]] == [1.0, 10.0, 10.0]
    assert all(one["value"] > 0 and one["unit"] == "s" for one in found["measures"])
    assert found["quick"] and all(one["met"] is None for one in found["measures"])
