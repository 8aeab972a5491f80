"""`atoll bench blob`, `churn` and `grants` by the command line; their speed is not asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benches import quick

WHAT = {
    "blob": {"put": "≥ 0.4×", "get": "≥ 0.3×", "100 ms put": "≥ 50×", "100 ms get": "≥ 5×"},
    "churn": {"1000 sites": "≤ 3×", "deciding": "≤ 3×"},
    "grants": {"grants": "≥ 1000 1/s", "bare": "≥ 0.4×", "batched": "≥ 5000 1/s"},
}
KEYS = {"what", "value", "unit", "against", "against_value", "ratio", "target", "met"}


@pytest.mark.parametrize("name", sorted(WHAT))
def test_a_quick_bench_prints_the_documented_object(name: str, tmp_path: Path) -> None:
    report = quick(name, tmp_path)
    assert report["name"] == name and report["runs"] == 1 and report["machine"]["cores"]
    assert {one["what"]: one["target"] for one in report["measures"]} == WHAT[name]
    for one in report["measures"]:
        assert one.keys() == KEYS and one["value"] > 0
        if one["against_value"] is not None:
            assert one["ratio"] == one["value"] / one["against_value"]
        assert one["met"] is None
    assert report["quick"] is True
    assert list(tmp_path.glob("atoll-bench-*")) == []  # nothing is left behind
