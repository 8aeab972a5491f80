"""`atoll bench quality`: three sites beside the centralised baseline, by the code of real runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.bench import quality
from ops.bench.quality import StudyInvalid, missing, paired, read, report
from ops.bench.quality_plan import BASELINE, BEST, FINAL, SEEDS, STUDY
from ops.bench.quality_runs import SEQUENCE_TOKENS, Row, Setting, build, play

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SHORT = 144  # sequences: of the whole blocks alone


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("english") / "data"
    build(folder, 64)
    return folder


def test_both_sides_train_the_same_tokens_and_what_is_recorded_reads_the_same(data: Path) -> None:
    base = play(replace(BASELINE, sequences=SHORT), 1, data)
    sites = play(replace(BEST["H=20"], sequences=SHORT, h=3), 1, data)
    assert base.tokens == sites.tokens == SHORT * SEQUENCE_TOKENS
    assert (base.setting.steps, sites.setting.steps) == (3, 3)
    assert base.loss != sites.loss and base.data == sites.data
    for row in (base, sites):
        assert Row.of(json.loads(json.dumps(row.as_json()))) == row


def test_gaps_are_paired_by_seed_and_data() -> None:
    def row(setting: Setting, seed: int, loss: float, data: str = "one") -> Row:
        return Row(setting, seed, loss, 1, 1.0, data)

    best = BEST["H=20"]
    rows = [row(BASELINE, 1, 3.0), row(BASELINE, 2, 4.0), row(best, 1, 3.5), row(best, 2, 4.25)]
    rows += [row(best, 3, 9.0), row(best, 4, 9.0, "other")]
    assert paired(rows, best, BASELINE) == [0.5, 0.25]
    fresh = [row(BASELINE, 1, 3.0), row(best, 1, 3.015), row(BEST["H=100"], 1, 3.25)]
    found = report(fresh, rows)
    measures = {one.what: (round(one.value, 9), one.met) for one in found.measures}
    assert measures == {"H=20": (0.015, True), "H=100": (0.25, False)}
    assert [note for note in found.notes if "recorded earlier" in note] == [
        "H=20, recorded earlier: +0.3750 ± 1.5882 nats (95 % of 2 pairs)"  # 12.706 * 0.1768 / √2
    ]


def test_a_study_goes_on_with_what_is_not_recorded() -> None:
    plan = (*STUDY, *FINAL)
    assert len(set(FINAL)) == len(FINAL) and {seed for _, seed in FINAL} == set(SEEDS)
    assert all(setting.steps >= 2000 for setting, _ in FINAL)
    done = [Row(*plan[0], 3.0, 1, 1.0, "one"), Row(*plan[1], 3.0, 1, 1.0, "other")]
    assert missing(plan, done, "one") == list(dict.fromkeys(plan))[1:]


def test_recorded_rows_are_read_and_a_strange_line_is_named(tmp_path: Path) -> None:
    for row in read(RESULTS / "quality.jsonl"):
        assert 0 < row.loss < 10 and row.setting.config(row.seed).seed == row.seed
    path = tmp_path / "rows.jsonl"
    assert read(path) == []
    path.write_text('{"seed": 1}\n')
    with pytest.raises(StudyInvalid, match="line 1: no row of a study"):
        read(path)


def test_another_number_of_sites_is_refused() -> None:
    with pytest.raises(StudyInvalid, match="--sites 4"):
        quality.run(True, lambda *_: None, sites=4)
