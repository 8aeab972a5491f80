"""Held-out loss, and a text the model writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from sitehub.batches import heldout_batches
from sitehub.corpus import Corpus, num_heldout_targets

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

_BATCH_TOKENS = 4096  # inputs evaluated together; bounds the memory of the logits


@dataclass(frozen=True, slots=True)
class Evaluation:
    """loss: mean nats per token. bits_per_byte: the same loss over the bytes of the text, which
    compares models of different tokenizers."""

    loss: float
    perplexity: float
    bits_per_byte: float
    num_tokens: int


def evaluate(model: PreTrainedModel, corpus: Corpus, max_tokens: int | None = None) -> Evaluation:
    """The model on held-out sequences from the start of the file: all of them, or whole ones up
    to `max_tokens` (at least one). Leaves the model as it was."""
    num_tokens = num_heldout_targets(corpus, max_tokens)
    length = corpus.sequence_tokens
    total, was_training = 0.0, model.training
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():  # not inference mode: what FSDP2 makes in it no later training can use
        batches = heldout_batches(corpus, num_tokens // length, max(1, _BATCH_TOKENS // length))
        for inputs, targets in batches:
            total += float(token_losses(model, inputs.to(device), targets.to(device)).sum())
    model.train(was_training)
    loss = total / num_tokens
    bits = total / math.log(2) / _text_bytes(corpus, num_tokens)
    return Evaluation(loss, perplexity(loss), bits, num_tokens)


def token_losses(
    model: PreTrainedModel, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Nats of each target, fp32, [sequences * L]."""
    logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits
    return functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="none"
    )


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def sample(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    prompt: str,
    num_tokens: int,
    seed: int,
    *,
    end_of_document: int = 0,
    temperature: float = 0.8,
    top_k: int = 40,
) -> str:
    """Text that continues `prompt` by up to `num_tokens` tokens (fewer where the document ends),
    the prompt included; drawn from the `top_k` likeliest tokens. Equal seeds give equal texts on
    one machine. `end_of_document` is the token's id in the data's manifest, by which an empty
    prompt begins."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids or [end_of_document]
    window = int(getattr(model.config, "max_position_embeddings", len(ids) + num_tokens))
    device, was_training = next(model.parameters()).device, model.training
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    with torch.inference_mode():
        for _ in range(num_tokens):
            inputs = torch.tensor([ids[-window:]], device=device)
            logits = model(input_ids=inputs, use_cache=False).logits[0, -1].float().cpu()
            values, tokens = torch.topk(logits / temperature, min(top_k, len(logits)))
            pick = torch.multinomial(torch.softmax(values, 0), 1, generator=generator)
            ids.append(int(tokens[pick]))
            if ids[-1] == end_of_document:
                break
    model.train(was_training)
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


def _text_bytes(corpus: Corpus, num_tokens: int) -> int:
    """Bytes of the text of the evaluated targets: a character cut at either end counts whole."""
    ids = corpus.heldout[1 : 1 + num_tokens].tolist()
    return max(1, len(corpus.tokenizer.decode(ids, skip_special_tokens=True).encode()))
