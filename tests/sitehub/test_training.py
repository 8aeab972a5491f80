"""The inner loop is AdamW with clipping as written down, and a bad step changes nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

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
    assert (result.steps, result.tokens, result.num_skipped) == (3, 12 * 16, 0)
    assert result.rate == pytest.approx(INNER.lr * 0.6)
    expected = parameters_of(theirs)
    for name, value in parameters_of(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-5)


def test_step_without_a_finite_loss_leaves_the_parameters(corpus: Corpus) -> None:
    model = build_model(TABLE, 300, 4)
    parameters_of(model)["model.norm.weight"][3] = math.nan
    before = copies(model)
    loop = InnerLoop(model, corpus, INNER, block_sequences=8)
    result = loop.train_block(0, (0.5, 0.6), lambda meter: None)
    assert math.isnan(result.loss) and (result.steps, result.num_skipped) == (2, 2)
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


def trained(corpus: Corpus, inner: Inner, blocks: int = 1) -> tuple[Parameters, float]:
    """Parameters and last loss after blocks of three steps, the last of which has fewer rows."""
    model = build_model(TABLE, 300, 4)
    loop = InnerLoop(model, corpus, inner, block_sequences=11)
    for block in range(blocks):
        result = loop.train_block(block, (0.5, 0.6), lambda meter: None)
    return parameters_of(model), result.loss


def with_(**changes: Any) -> Inner:
    return Inner.model_validate(INNER.model_dump() | changes)


def assert_near(one: Parameters, other: Parameters, atol: float) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol)


def test_passes_of_a_step_add_up_to_it(corpus: Corpus) -> None:
    (whole, loss), (parts, again) = trained(corpus, INNER), trained(corpus, with_(accumulate=4))
    assert again == pytest.approx(loss, rel=1e-5)
    assert_near(whole, parts, 2e-5)


def test_recomputed_activations_give_the_same_step(corpus: Corpus) -> None:
    once, loss = trained(corpus, INNER)
    again, same = trained(corpus, with_(activation_checkpointing=True))
    assert same == loss
    assert_near(once, again, 1e-6)


def test_bf16_is_near_fp32_and_keeps_parameters_in_fp32(corpus: Corpus) -> None:
    (exact, loss), (rough, near) = trained(corpus, INNER), trained(corpus, with_(precision="bf16"))
    assert near != loss and near == pytest.approx(loss, rel=1e-2)
    assert all(value.dtype is torch.float32 for value in rough.values())
    assert any(not torch.equal(exact[name], rough[name]) for name in exact)


def muon_by_hand(gradient: torch.Tensor) -> torch.Tensor:
    """Muon's first step at rate 1, by its closed form: five times the odd polynomial of Jordan's
    coefficients makes of U S V' only other singular values, scaled as arXiv:2502.16982, eq. 4."""
    u, s, v = torch.linalg.svd(gradient.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return 0.2 * max(gradient.shape) ** 0.5 * (u * s) @ v


def test_muon_is_for_matrices_and_leaves_tables_and_gains_to_adamw(corpus: Corpus) -> None:
    plain: dict[str, Any] = {
        "weight_decay": 0.0,
        "warmup": 0.0,
        "schedule": "constant",
        "final_lr": 1,
    }
    inner = with_(optimizer="muon", adamw_share=0.25, **plain)
    before, model = build_model(TABLE, 300, 4), build_model(TABLE, 300, 4)
    loop = InnerLoop(model, corpus, inner, block_sequences=4)
    loop.train_block(0, (0.5, 0.6), lambda meter: None)  # a single step
    loss_by_definition(before, *next(iter(batches_of_block(corpus, 0, 4, 4)))).backward()
    after = parameters_of(model)
    for name, value in before.named_parameters():
        step = (value.detach() - after[name]) / inner.lr
        if value.dim() == 2 and "embed" not in name:
            assert value.grad is not None
            expected = muon_by_hand(value.grad)
            # it computes in bf16, and the smallest singular values grow 3.4445⁵ = 485 times
            assert (step - expected).norm() < 0.3 * expected.norm(), name
        else:  # AdamW's first step is the gradient's sign, at its share of the rate
            moved = step[step.abs() > 1e-6].abs() / 0.25  # less where eps weighs beside a tiny one
            assert moved.max() < 1.001 and moved.median() > 0.999, name


def test_state_is_forgotten_at_a_version_where_that_is_configured(corpus: Corpus) -> None:
    for on_version, is_kept in (("keep", True), ("reset", False)):
        loop = InnerLoop(
            build_model(TABLE, 300, 4), corpus, with_(on_version=on_version), block_sequences=4
        )
        loop.train_block(0, (0.5, 0.6), lambda meter: None)
        loop.on_version()
        assert bool(list(loop.optimizer.state())) == is_kept


def test_a_model_that_has_no_length_can_be_compiled(corpus: Corpus) -> None:
    """Truth of a compiled module asks for its length. Nothing is compiled before the first step."""
    loop = InnerLoop(build_model(TABLE, 300, 4), corpus, with_(compile=True), block_sequences=4)
    assert loop._module._orig_mod is loop.model


@pytest.mark.soak
def test_compiled_model_takes_the_same_step(corpus: Corpus) -> None:
    (plain, loss), (fast, same) = trained(corpus, INNER), trained(corpus, with_(compile=True))
    assert same == pytest.approx(loss, rel=1e-5)
    assert_near(plain, fast, 2e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"accumulate": 3}, "accumulate = 3 does not divide batch_sequences = 4"),
        ({"schedule": "constant", "final_lr": 0.5}, "never falls; leave it out"),
        ({"decay": 0.5}, 'only "wsd" has one'),
        ({"schedule": "wsd", "warmup": 0.9}, "more than the whole run"),
        ({"muon_momentum": 0.9}, 'give optimizer = "muon"'),
        ({"adamw_share": 0.5}, 'give optimizer = "muon"'),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        with_(**changes)
