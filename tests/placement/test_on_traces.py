"""On published traces, where there are any: bounds cover, out of sample; planning pays.

The traces are named by ATOLL_TRACES (default ../shared/traces); the project ships none of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ops import exits
from ops.cli import run
from ops.placement import coverage, study, traces
from ops.placement.coverage import Coverage
from ops.placement.estimate import Estimator
from ops.placement.settings import setting

FOLDER = Path(os.environ.get("ATOLL_TRACES") or "../shared/traces")
needs_traces = pytest.mark.skipif(
    not (FOLDER / traces.KTH).is_file(), reason=f"no traces in {FOLDER} (ATOLL_TRACES)"
)
QUIET = lambda what, done, total: None  # noqa: E731


def second_half(observations: list[coverage.Observation]) -> list[Coverage]:
    """Coverage of the second half of the time; the first was for choosing constants."""
    found = list(coverage.judged(observations, Estimator()))
    return coverage.coverage(found, since_s=observations[len(observations) // 2].at_s)


@needs_traces
def test_bounds_cover_on_kth_with_our_own_simulation_of_its_queue() -> None:
    half, most = second_half(coverage.of_kth(traces.kth(FOLDER / traces.KTH), every=6))
    assert abs(half.share - 0.5) < 0.05 and abs(most.share - 0.9) < 0.03


@needs_traces
def test_bounds_cover_on_the_drac_trace_with_its_sampling_undone() -> None:
    half, most = second_half(coverage.of_drac(traces.drac(FOLDER / traces.DRAC), num=12_000))
    assert abs(half.share - 0.5) < 0.05 and abs(most.share - 0.9) < 0.03


@needs_traces
def test_on_the_pairs_the_stated_levels_are_within_the_interval_clustered_by_snapshot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["place", "calibration", str(FOLDER / traces.PAIRS), "--json"]) == exits.GOOD
    told = json.loads(capsys.readouterr().out)
    assert told["forecasts"] == 58
    for row in told["bounds"]:
        assert row["num_clusters"] < 20 < row["num"]  # not one interval of 58 independent pairs
        assert row["low"] <= row["level"] <= row["high"]


@needs_traces
def test_calibrated_placement_beats_the_greedy_chain_on_bootstrapped_waits() -> None:
    made = setting("bootstrapped", 3, folder=FOLDER)
    chain, planned = study.compare(made, ["elastic-chain", "calibrated"], 6.0, 77, 6, QUIET)
    gained, (low, _) = study.reduction(planned.times_s, chain.times_s)
    assert gained > 0.05 and low > 0


@needs_traces
def test_traces_of_the_right_name_and_other_content_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / traces.PAIRS
    wrong.write_text((FOLDER / traces.PAIRS).read_text().replace("2022-12-02", "yesterday", 1))
    with pytest.raises(traces.TraceInvalid, match="no row of estimate and start"):
        traces.pairs(wrong)


def test_a_recorded_file_is_judged_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.jsonl"
    rows = [{"at_s": 3600.0 * k, "wait_s": 600.0 + k, "said_s": 300.0} for k in range(200)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["place", "calibration", str(file), "--json"]) == exits.GOOD
    told = json.loads(capsys.readouterr().out)
    assert told["forecasts"] == 200 and 8 <= told["from_prior"] <= 10
    assert told["bounds"][0]["num"] == 200 - told["from_prior"]
    file.write_text('{"at_s": 1}\n')
    assert run(["place", "calibration", str(file)]) == exits.INVALID
    assert "history.jsonl:1" in capsys.readouterr().err
