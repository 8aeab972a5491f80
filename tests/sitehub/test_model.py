"""The model is what its table says, and a table with a mistake is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from sitehub.model import (
    ModelInvalid,
    build_model,
    load_into,
    model_config,
    num_parameters,
    parameters_of,
)
from tests.sitehub.support import TABLE


def test_table_gives_the_real_architecture_with_the_datas_vocabulary() -> None:
    model = build_model(TABLE, 300, 0)
    assert type(model) is Qwen3ForCausalLM
    assert model.config.vocab_size == 300
    # embedding (tied), q k v o, q and k norms, gate up down, two norms, the last norm
    attention = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 2 * 16
    assert num_parameters(model) == 300 * 32 + attention + 3 * 32 * 64 + 2 * 32 + 32
    assert all(value.dtype is torch.float32 for value in parameters_of(model).values())


def test_tied_weights_are_listed_once_in_sorted_order() -> None:
    tied = parameters_of(build_model(TABLE, 300, 0))
    untied = parameters_of(build_model(TABLE | {"tie_word_embeddings": False}, 300, 0))
    assert set(untied) - set(tied) == {"lm_head.weight"}
    assert list(untied) == sorted(untied)


def test_initial_parameters_depend_on_the_seed_alone() -> None:
    torch.manual_seed(99)
    first = parameters_of(build_model(TABLE, 300, 5))
    state = torch.random.get_rng_state()
    second = parameters_of(build_model(TABLE, 300, 5))
    other = parameters_of(build_model(TABLE, 300, 6))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hiden_size": 32}, "hiden_size.*did you mean 'hidden_size'"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 32.5}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"dtype": "float16"}, "dtype"),
        ({"hidden_act": "foo"}, "foo"),
        ({"hidden_size": 0}, "size of 0"),
        ({"head_dim": 0}, "cannot be built"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "cannot be built"),
        ({"vocab_size": 299}, "vocab_size = 299 is smaller than the data's 300"),
        ({"model_type": "qwen33"}, "qwen33.*did you mean 'qwen3'"),
        ({"model_type": "vit"}, "no causal language model"),
        ({"model_type": 3}, "model_type = 3"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_mistake_in_the_table_is_refused_in_one_line(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelInvalid, match=named) as raised:
        build_model(TABLE | change, 300, 0)
    assert "\n" not in str(raised.value)


def test_rope_fields_of_a_published_configuration_take_effect() -> None:
    config = model_config(TABLE | {"rope_theta": 500.0}, 300)
    assert config.rope_parameters["rope_theta"] == 500.0


def test_sequences_longer_than_the_models_positions_are_refused() -> None:
    table = TABLE | {"max_position_embeddings": 64}
    assert build_model(table, 300, 0, sequence_tokens=64)
    with pytest.raises(ModelInvalid, match="max_position_embeddings = 64"):
        build_model(table, 300, 0, sequence_tokens=65)


def test_larger_vocabulary_than_the_datas_is_kept() -> None:
    assert model_config(TABLE | {"vocab_size": 320}, 300).vocab_size == 320


def test_loading_brings_every_value_and_tied_ones_too() -> None:
    source, target = build_model(TABLE, 300, 1), build_model(TABLE, 300, 2)
    load_into(target, parameters_of(source))
    tokens = torch.arange(8).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(source(input_ids=tokens).logits, target(input_ids=tokens).logits)


def test_parameters_of_another_model_are_refused_and_change_nothing() -> None:
    model = build_model(TABLE, 300, 1)
    before = {name: value.clone() for name, value in parameters_of(model).items()}
    wider = parameters_of(build_model(TABLE | {"intermediate_size": 80}, 300, 2))
    deeper = parameters_of(build_model(TABLE | {"num_hidden_layers": 2}, 300, 2))
    for foreign, named in ((wider, "mlp.*shape"), (deeper, "layers.1")):
        with pytest.raises(ModelInvalid, match=named):
            load_into(model, foreign)
    assert all(torch.equal(before[name], value) for name, value in parameters_of(model).items())
