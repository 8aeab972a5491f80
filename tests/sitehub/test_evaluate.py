"""Held-out figures are what their definitions say."""

from __future__ import annotations

import math

import pytest
import torch

from sitehub.corpus import Corpus
from sitehub.evaluate import evaluate, perplexity, sample
from sitehub.model import build_model, parameters_of
from tests.sitehub.support import TABLE


def test_model_that_knows_nothing_has_the_uniform_perplexity(corpus: Corpus) -> None:
    model = build_model(TABLE, corpus.vocab_size, 0)
    parameters_of(model)["model.embed_tokens.weight"].zero_()  # all logits are 0
    result = evaluate(model, corpus)
    assert result.num_tokens == corpus.manifest.heldout.num_sequences * 16
    assert result.loss == pytest.approx(math.log(corpus.vocab_size), rel=1e-6)
    assert result.perplexity == pytest.approx(corpus.vocab_size, rel=1e-5)


def test_loss_is_the_mean_over_targets_of_the_models_own_loss(corpus: Corpus) -> None:
    model = build_model(TABLE, corpus.vocab_size, 3)
    result = evaluate(model, corpus, max_tokens=16 * 3 + 5)
    tokens = torch.from_numpy(corpus.heldout[: 16 * 3 + 1].astype("int64"))
    rows = torch.stack([tokens[i * 16 : i * 16 + 17] for i in range(3)])
    with torch.inference_mode():
        logits = model(input_ids=rows[:, :-1]).logits
    log_p = torch.log_softmax(logits.double(), -1).gather(-1, rows[:, 1:, None])
    assert result.num_tokens == 48
    assert result.loss == pytest.approx(-float(log_p.mean()), rel=1e-5)


def test_bits_per_byte_count_the_bytes_of_the_text(corpus: Corpus) -> None:
    model = build_model(TABLE, corpus.vocab_size, 3)
    result = evaluate(model, corpus)
    ids = corpus.heldout[1 : 1 + result.num_tokens].tolist()
    num_bytes = len(corpus.tokenizer.decode(ids, skip_special_tokens=True).encode())
    bits = result.loss * result.num_tokens / math.log(2)
    assert result.bits_per_byte == pytest.approx(bits / num_bytes)


def test_evaluating_leaves_the_model_as_it_was(corpus: Corpus) -> None:
    model = build_model(TABLE, corpus.vocab_size, 3)
    before = {name: value.clone() for name, value in parameters_of(model).items()}
    model.train()
    evaluate(model, corpus, max_tokens=32)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in parameters_of(model).items())


def test_perplexity_of_a_hopeless_loss_is_infinite() -> None:
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_sample_continues_the_prompt_and_depends_on_the_seed(corpus: Corpus) -> None:
    model = build_model(TABLE, corpus.vocab_size, 3)
    texts = [sample(model, corpus.tokenizer, "the log", 20, seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("the log") and len(text) > len("the log") for text in texts)
    assert sample(model, corpus.tokenizer, "", 5, 0)
