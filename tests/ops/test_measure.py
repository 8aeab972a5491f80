"""A benchmark's figures: medians, ratios in one run, targets judged unrounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.bench.measure import Report, at_least, at_most, measured
from ops.commands.bench import _show


def test_medians_of_both_sides_give_the_ratio() -> None:
    one = measured("fold", [10, 30, 20], "events/s", against="bare", against_values=[50, 40, 60])
    assert (one.value, one.against_value, one.ratio) == (20, 50, 0.4)


def test_a_target_on_the_ratio_is_judged_unrounded() -> None:
    target = at_least(0.4, "ratio")
    just = measured("fold", [39.9999], "1/s", against="bare", against_values=100, target=target)
    assert just.met is False
    assert just.as_json()["target"] == "≥ 0.4×"
    assert measured("fold", [40], "1/s", against="b", against_values=100, target=target).met


def test_a_target_on_the_value_names_its_unit() -> None:
    one = measured("memory", [480.0], "MB", target=at_most(500))
    assert one.as_json() == {
        "what": "memory",
        "value": 480.0,
        "unit": "MB",
        "against": None,
        "against_value": None,
        "ratio": None,
        "target": "≤ 500 MB",
        "met": True,
    }


def test_without_values_or_without_the_other_side_nothing_is_reported() -> None:
    with pytest.raises(ValueError, match="no run gave a value"):
        measured("fold", [], "1/s")
    with pytest.raises(ValueError, match="needs what it is compared with"):
        measured("fold", [1.0], "1/s", target=at_least(1, "ratio"))


def test_a_report_says_where_and_how_often() -> None:
    found = Report("replay", (measured("fold", [1.0], "1/s"),), 5, ("short log",)).as_json()
    assert found["runs"] == 5 and found["notes"] == ["short log"]
    assert found["machine"]["cores"] >= 1 and found["machine"]["load"] >= 0


WHOLE = Report(
    "three",
    (
        measured("met", [1.0], "s", target=at_most(2)),
        measured("missed", [3.0], "s", target=at_most(2)),
        measured("shown", [3.0], "s"),
    ),
    5,
)


def test_a_whole_run_is_judged_and_a_quick_one_is_not() -> None:
    for quick, verdicts in ((False, [True, False, None]), (True, [None, None, None])):
        found = replace(WHOLE, quick=quick).as_json()
        assert [one["met"] for one in found["measures"]] == verdicts
        assert [one["target"] for one in found["measures"]] == ["≤ 2 s", "≤ 2 s", None]
        assert found["quick"] is quick


def test_a_table_has_verdicts_of_a_whole_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    _show(WHOLE)
    assert {"yes", "NO"} < set(capsys.readouterr().out.split())
    _show(replace(WHOLE, quick=True))
    said = capsys.readouterr().out
    assert not {"yes", "NO"} & set(said.split()) and "no target is judged" in said
