"""Models that outer rounds are measured on, as `model` tables of a run's configuration."""

from __future__ import annotations

import math
from typing import Any

Shapes = dict[str, tuple[int, ...]]

_QWEN3 = {"model_type": "qwen3", "tie_word_embeddings": True}

# Named by what they are; the parameters of each are counted by a test.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {  # https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json
        **_QWEN3,
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    "qwen3-50m": {
        **_QWEN3,
        "vocab_size": 30_000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 11,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 128,
    },
}


def shapes_of(table: dict[str, Any]) -> Shapes:
    """Names and shapes of a model's parameters, sorted, tied ones once; no memory is taken."""
    import torch  # whoever only asks for names of models need not wait for it
    from transformers import AutoModelForCausalLM

    from sitehub.model import model_config

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(table, 1))
    return {name: tuple(value.shape) for name, value in sorted(model.named_parameters())}


def count(table: dict[str, Any]) -> int:
    """Parameters of a model."""
    return sum(math.prod(shape) for shape in shapes_of(table).values())
