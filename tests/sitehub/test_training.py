"""The inner loop is AdamW with clipping as written down, and a bad step changes nothing."""

from __future__ import annotations

import math

import pytest
import torch

from eventlog.inner import Inner
from sitehub.batches import batches_of_block
from sitehub.corpus import Corpus
from sitehub.model import Parameters, build_model, parameters_of
from sitehub.training import InnerLoop, Meter
from tests.sitehub.support import TABLE

INNER = Inner(batch_sequences=4, lr=3e-3, warmup=0.5, final_lr=0.1, clip_norm=0.5)


def loss_by_definition(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    log_p = torch.log_softmax(model(input_ids=x).logits, -1)
    return -log_p.gather(-1, y.unsqueeze(-1)).mean()


def adamw_by_hand(corpus: Corpus, model: torch.nn.Module, rates: list[float]) -> list[float]:
    """Decoupled weight decay (arXiv:1711.05101, algorithm 2) on matrices, after clipping the
    gradient to its norm; the losses before each step."""
    first: dict[str, torch.Tensor] = {}
    second: dict[str, torch.Tensor] = {}
    losses = []
    batches = batches_of_block(corpus, 0, 4 * len(rates), 4)
    for t, (rate, (x, y)) in enumerate(zip(rates, batches, strict=True), 1):
        loss = loss_by_definition(model, x, y)
        names, values = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, values)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for name, value, gradient in zip(names, values, gradients, strict=True):
                g = gradient * min(1.0, INNER.clip_norm / norm)
                first[name] = INNER.beta1 * first.get(name, 0) + (1 - INNER.beta1) * g
                second[name] = INNER.beta2 * second.get(name, 0) + (1 - INNER.beta2) * g * g
                m = first[name] / (1 - INNER.beta1**t)
                v = second[name] / (1 - INNER.beta2**t)
                decay = INNER.weight_decay if value.dim() >= 2 else 0.0
                value.sub_(rate * (m / (v.sqrt() + INNER.eps) + decay * value))
    return losses


def copies(model: torch.nn.Module) -> Parameters:
    return {name: value.clone() for name, value in parameters_of(model).items()}


def test_block_is_adamw_with_clipping_at_the_rates_of_the_schedule(corpus: Corpus) -> None:
    ours, theirs = build_model(TABLE, 300, 4), build_model(TABLE, 300, 4)
    loop = InnerLoop(ours, corpus, INNER, block_sequences=12)
    result = loop.train_block(0, (0.0, 0.3), lambda meter: None)
    # warm-up over half the run: at progress 0.1, 0.2, 0.3 a fifth, two, three of the peak
    losses = adamw_by_hand(corpus, theirs, [INNER.lr * share for share in (0.2, 0.4, 0.6)])
    assert result.loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert (result.steps, result.tokens) == (3, 12 * 16)
    expected = parameters_of(theirs)
    for name, value in parameters_of(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-5)


def test_step_without_a_finite_loss_leaves_the_parameters(corpus: Corpus) -> None:
    model = build_model(TABLE, 300, 4)
    parameters_of(model)["model.norm.weight"][3] = math.nan
    before = copies(model)
    loop = InnerLoop(model, corpus, INNER, block_sequences=8)
    result = loop.train_block(0, (0.5, 0.6), lambda meter: None)
    assert math.isnan(result.loss) and result.steps == 2
    for name, value in parameters_of(model).items():
        assert torch.equal(value, before[name]) or name == "model.norm.weight"


def test_gradient_that_is_not_finite_is_a_step_not_taken(corpus: Corpus) -> None:
    model = build_model(TABLE, 300, 4)
    # The loss stays finite, its gradient does not.
    model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    before = copies(model)
    loop = InnerLoop(model, corpus, INNER, block_sequences=4)
    assert math.isnan(loop.train_block(0, (0.5, 0.6), lambda meter: None).loss)
    assert all(torch.equal(before[name], value) for name, value in parameters_of(model).items())


def test_meter_counts_everything_and_forgets_old_rates() -> None:
    meter = Meter()
    assert (meter.tokens_per_s, meter.step_s) == (0.0, 0.0)
    for _ in range(300):
        meter.add(tokens=1000, seconds=0.5)
    assert meter.tokens_per_s == pytest.approx(2000)
    assert meter.step_s == pytest.approx(0.5)
    for _ in range(10):  # five seconds at half the rate: the old ones weigh 1/e of what they did
        meter.add(tokens=500, seconds=0.5)
    assert meter.tokens_per_s == pytest.approx(2000 / math.e + 1000 * (1 - 1 / math.e), rel=1e-6)
    assert (meter.steps, meter.tokens) == (310, 305_000)
