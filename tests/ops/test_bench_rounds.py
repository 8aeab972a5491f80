"""`atoll bench round` and `torchft`: what they promise to measure, and against which limits."""

from __future__ import annotations

from statistics import median

import pytest

from ops import exits
from ops.bench import round as bench_round
from ops.bench import torchft
from ops.bench.round import CODECS, PHASES, Found
from ops.bench.shapes import MODELS, count, shapes_of
from ops.cli import run
from tests.support.benches import quick

TINY = {
    "model_type": "qwen3",
    "tie_word_embeddings": True,
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
}


def test_the_models_have_the_published_size_and_shapes() -> None:
    assert count(MODELS["qwen3-0.6b"]) == 596_049_920
    assert count(MODELS["qwen3-50m"]) == 49_976_192
    real = shapes_of(MODELS["qwen3-0.6b"])
    assert len(real) == 2 + 28 * 11  # embedding and last norm, the head tied to the embedding
    assert real["model.embed_tokens.weight"] == (151_936, 1024)
    assert real["model.layers.27.self_attn.k_proj.weight"] == (8 * 128, 1024)


def test_the_critical_path_is_the_sum_of_its_phases_against_copies_and_a_digest() -> None:
    phases = {name: [9.0, float(number), 0.0] for number, name in enumerate(PHASES, start=1)}
    first = Found(phases, (300_000_000, 310_000_001), {"coordinator": 9.6, "site": 12.0})
    second = Found(phases, (17_000_000, 16_000_000), {})
    limits = {"bytes": 1.0, "copy": 0.5, "digest": 3.0}
    found = bench_round.measures(
        dict(zip(CODECS, (first, second), strict=True)), limits, 600_000_000
    )
    said = {one.what: one.as_json() for one in found}
    assert said["critical path"]["value"] == 28.0  # 1 + 2 + ... + 7
    assert said["critical path"]["against_value"] == 7.0
    assert (said["critical path"]["ratio"], said["critical path"]["met"]) == (4.0, True)
    assert said["critical path seconds"]["target"] == "≤ 30 s"
    assert said["critical path seconds"]["against_value"] == 110.0
    assert (said["4-bit bytes"]["value"], said["4-bit bytes"]["met"]) == (0.310000001, False)
    assert (said["top-k bytes"]["value"], said["top-k bytes"]["met"]) == (17.0, True)
    assert said["4-bit memory, coordinator"]["ratio"] == 4.0
    assert said["4-bit memory, site"]["target"] is None


def test_ours_is_held_against_the_peer_of_the_same_run() -> None:
    ours = {"4-bit": [1.0, 2.0, 9.0], "fp32": [9.0, 10.5, 11.0]}
    said = {one.what: one.as_json() for one in torchft.measures(ours, [3.0, 2.0, 1.0])}
    assert {what: one["ratio"] for what, one in said.items()} == {"4-bit": 1.0, "fp32": 5.25}
    assert {what: one["target"] for what, one in said.items()} == {"4-bit": "≤ 1×", "fp32": "≤ 5×"}
    assert {what: one["met"] for what, one in said.items()} == {"4-bit": True, "fp32": False}


def test_options_of_one_bench_are_refused_by_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "churn", "--sites", "3"]) == exits.USAGE
    assert (
        "--sites is an option of `atoll bench round` and `atoll bench quality` alone"
        in capsys.readouterr().err
    )


def test_a_peer_that_is_not_there_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setenv(torchft.VARIABLE, "/nowhere/python")
    assert run(["bench", "torchft", "--quick"]) == exits.INVALID
    assert "/nowhere/python: has no torchft" in capsys.readouterr().err


def test_a_small_round_ends_with_the_coordinators_digests_at_the_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODELS, "tiny", TINY)
    report = bench_round.run(True, lambda *_: None, "tiny", 2)
    said = {one.what: one for one in report.measures}
    path = [said[f"4-bit {phase}"].value for phase in PHASES]
    assert all(seconds > 0 for seconds in path)
    assert said["critical path"].value == pytest.approx(sum(path))
    num = count(TINY)
    # a scale of 2 bytes a block of 64 or so, and 4 bits a number; top-k: 64 of 4,096
    assert num / 2 < said["4-bit bytes"].value * 1e9 < 0.75 * num
    assert num / 64 < said["top-k bytes"].value * 1e6 < num / 8
    assert median([one.value for name, one in said.items() if "memory" in name]) > 0


@pytest.mark.soak
def test_the_quick_bench_against_torchft_measures_both() -> None:
    said = {one["what"]: one for one in quick("torchft")["measures"]}
    assert set(said) == {"4-bit", "fp32"}
    for one in said.values():
        assert one["ratio"] == one["value"] / one["against_value"]
