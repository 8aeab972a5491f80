"""The true Qwen3-0.6B: one inner step on a CPU, and its delta through the outer loop."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import pytest
import torch

from eventlog.config import RunConfig
from eventlog.inner import Inner
from outer.codecs import encode
from outer.merge import take_step
from outer.nesterov import Rule
from outer.versions import OuterState, digest, load_parameters, save_parameters
from sitehub.build import Options, build
from sitehub.corpus import Corpus
from sitehub.model import build_model, num_parameters, parameters_of
from sitehub.sources import folder
from sitehub.training import InnerLoop
from tests.sitehub.support import write_text

QWEN3 = {  # its published config.json
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
NUM_PARAMETERS = 596_049_920


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("real")
    return build([folder(write_text(root / "text"))], root / "data", Options(64, 300))


@pytest.mark.soak
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_step_and_its_delta(data: Corpus, tmp_path: Path, precision: str) -> None:
    table = RunConfig.model_validate(
        {"name": "real", "target": {"rounds": 1}, "data": {"block_sequences": 1},
         "inner": {"batch_sequences": 1}, "model": QWEN3}
    ).model  # fmt: skip
    model = build_model(table, data.vocab_size, 1, 64)
    assert num_parameters(model) == NUM_PARAMETERS
    save_parameters(parameters_of(model), tmp_path / "initial")
    inner = Inner(batch_sequences=1, lr=4e-4, warmup=0, precision=precision)
    loop = InnerLoop(model, data, inner, block_sequences=1)
    result = loop.train_block(0, (0.0, 0.1), lambda meter: None)
    assert (result.steps, result.tokens, result.num_skipped) == (1, 64, 0)
    assert result.loss == pytest.approx(math.log(QWEN3["vocab_size"]), rel=0.1)

    initial = load_parameters(tmp_path / "initial")
    delta = {name: initial[name] - value for name, value in parameters_of(model).items()}
    before = initial["model.norm.weight"].clone()
    del model, loop
    gc.collect()
    encode(delta, "bf16", tmp_path / "delta")
    expected = before - torch.tensor(0.7) * delta["model.norm.weight"].bfloat16().float()
    del delta
    state, digests = take_step(
        OuterState.of_own(initial),
        [(tmp_path / "delta", 1.0)],
        rule=Rule.of(0.7, 0.0),
        codec="bf16",
        update_path=tmp_path / "update",
    )
    assert state.version == 1 and digests.parameters == digest(state.parameters)
    assert torch.equal(state.parameters["model.norm.weight"], expected)
