"""`atoll bench codec-quality`: paired runs of the real replicas and merges, in one process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ops.bench import codec_quality
from ops.bench.codec_quality import ARMS, Arm, Row, config_of, interval, play, report
from ops.bench.pocket import PocketRun
from sitehub.corpus import Corpus
from tests.support.benches import quick

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "data"
    codec_quality._build(folder, 64)
    return folder


def test_quick_gives_every_measure_of_the_study() -> None:
    found = quick("codec-quality")
    assert [one["what"] for one in found["measures"]] == [arm.name for arm in ARMS[1:]]
    assert all(math.isfinite(one["value"]) for one in found["measures"])
    targets = {one["what"]: one["target"] for one in found["measures"]}
    assert targets["int8"] == targets["4-bit"] == "≤ 0.01 nats" and targets["top-k"] is None
    assert found["runs"] == 1


def test_arms_of_a_seed_train_the_same_tokens_and_fp32_is_bit_equal_to_itself(
    tmp_path: Path, data: Path
) -> None:
    first, again = (play(Arm("fp32", "fp32"), 1, 1, data) for _ in range(2))
    late = play(Arm("overlap", "fp32", 1), 1, 1, data)
    assert first.loss == again.loss and first.tokens == late.tokens
    assert late.loss == first.loss, "in the first round nothing overlaps yet"
    corpus = Corpus.open(data)
    with pytest.raises(ValueError, match="delay_blocks = 4"):
        PocketRun(corpus, config_of(ARMS[0], 1, 1), tmp_path, delay_blocks=4)


def test_overlap_folds_in_late_and_what_a_codec_loses_goes_with_the_next_delta(
    tmp_path: Path, data: Path
) -> None:
    prompt, late = (play(Arm("fp32", "fp32", blocks), 1, 2, data) for blocks in (0, 1))
    assert late.tokens == prompt.tokens and late.loss != prompt.loss
    folder = tmp_path / "run"
    folder.mkdir()
    one = PocketRun(Corpus.open(data), config_of(Arm("4-bit", "4-bit"), 1, 2), folder)
    one.play()
    for site in one._sites:
        assert site.replica.feedback.pending == ()
        assert any(tensor.any() for tensor in site.replica.feedback.residual().values())


def test_the_report_pairs_by_seed() -> None:
    rows = [
        Row(arm.name, seed, 5.0 + seed + 0.001 * place, 10, 1, 7, 7, 1.0)
        for seed in (1, 2, 3)
        for place, arm in enumerate(ARMS)
    ]
    values = {one.what: one.value for one in report(rows, 1).measures}
    assert {name: round(value, 9) for name, value in values.items()} == {
        arm.name: 0.001 * place for place, arm in enumerate(ARMS) if place
    }
    # Student's t of two pairs: 12.706 · s / √2, with s = 0.1·√2 / 2... of 1.0 and 1.1: 0.0707
    assert interval([1.0, 1.1]) == "+1.0500 ± 0.6353 nats (95 % of 2 pairs)"
    assert interval([0.5]) == "+0.5000 nats in one pair"


@pytest.mark.soak
def test_the_study_is_recorded() -> None:
    """Five seeds of twice the rounds; their rows are kept whatever they say."""
    rows = list(codec_quality.study((1, 2, 3, 4, 5), 40, lambda *_: None, math.inf))
    assert len(rows) == 5 * len(ARMS) and all(math.isfinite(row.loss) for row in rows)
    text = "".join(f"{codec_quality.as_line(row)}\n" for row in rows)
    (RESULTS / "codec-quality.jsonl").write_text(text)
