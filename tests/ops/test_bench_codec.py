"""`atoll bench codec --quick` runs through the command line and says what it promises to say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from ops.bench import qwen3
from ops.cli import run
from outer.codecs import Writer
from outer.packing import CODECS


def test_the_shapes_are_those_of_the_published_model() -> None:
    config = Qwen3Config(  # its config.json
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    found = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert qwen3.shapes() == found
    assert sum(map(math.prod, found.values())) == qwen3.NUM_PARAMETERS


def test_the_real_model_is_as_small_as_promised() -> None:
    sizes = {codec: Writer(Path("unused"), codec, qwen3.shapes()).num_bytes for codec in CODECS}
    assert sizes["fp32"] - 4 * qwen3.NUM_PARAMETERS < 100_000  # its head
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
