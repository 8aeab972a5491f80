"""`atoll bench codec --quick` runs through the command line and says what it promises to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.bench.shapes import MODELS, shapes_of
from ops.cli import run
from outer.codecs import Writer
from outer.packing import CODECS

NUM_PARAMETERS = 596_049_920  # of Qwen3-0.6B, which another test counts


def test_the_real_model_is_as_small_as_promised() -> None:
    model = shapes_of(MODELS["qwen3-0.6b"])
    sizes = {codec: Writer(Path("unused"), codec, model).num_bytes for codec in CODECS}
    assert sizes["fp32"] - 4 * NUM_PARAMETERS < 100_000  # its head
    assert sizes["4-bit"] <= 0.31e9
    assert sizes["top-k"] <= 17e6


def test_the_quick_benchmark_prints_the_documented_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "codec", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    measures = {one["what"]: one for one in found["measures"]}
    assert list(measures) == [*CODECS, *(f"{codec} bytes" for codec in CODECS)]
    assert measures["4-bit"]["target"] == "≤ 10×"
    assert measures["top-k"]["target"] == "≤ 20×"
    for codec in CODECS:
        one = measures[codec]
        assert one["unit"] == "s"
        assert one["ratio"] == pytest.approx(one["value"] / one["against_value"])
        assert one["value"] > 0
