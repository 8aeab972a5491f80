"""What a model table comes to, without the memory for it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from sitehub.model import ModelInvalid, model_config, num_parameters
from sitehub.pretrained import resolve


def outline(table: dict[str, Any], vocab_size: int | None) -> tuple[dict[str, Any], int, int]:
    """The resolved table, the vocabulary and the number of parameters, tied ones once.
    `vocab_size`: of the data; None where there are none, and the table says it. Raises
    ModelInvalid."""
    resolved = resolve(table, vocab_size or 0)
    vocab = vocab_size or resolved.get("vocab_size")
    if not vocab:
        raise ModelInvalid("model.vocab_size: missing: give it, or the data with --data")
    config = model_config(resolved, int(vocab))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return resolved, int(config.vocab_size), num_parameters(model)
