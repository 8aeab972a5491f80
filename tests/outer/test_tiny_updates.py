"""What θ's 24 digits cannot take now is not lost: it comes with later updates."""

from pathlib import Path

import numpy as np
import pytest
import torch

from outer import codecs, merge
from outer.nesterov import Rule, step
from outer.pieces import flat
from outer.versions import OuterState

ROUNDS = 100
AVERAGE, NESTEROV = (1.0, 0.0), (0.7, 0.9)


def parameters() -> torch.Tensor:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(2000, generator=chance).abs() + 0.01


def tiny(theta: torch.Tensor) -> torch.Tensor:
    """1e-8 of each parameter, of either sign."""
    chance = torch.Generator().manual_seed(1)
    return 1e-8 * theta * torch.randn(theta.shape, generator=chance).sign()


def steps(
    theta: torch.Tensor, delta: torch.Tensor, codec: str, rule: Rule, folder: Path
) -> OuterState:
    """The version after ROUNDS rounds of one delta each."""
    codecs.encode({"w": delta}, "fp32", folder / "delta")
    state = OuterState.initial({"w": theta})
    for _ in range(ROUNDS):
        state, _ = merge.take_step(
            state, [(folder / "delta", 1.0)], rule=rule, codec=codec, update_path=folder / "update"
        )
    return state


def exact(theta: torch.Tensor, delta: torch.Tensor, rule: Rule) -> np.ndarray:
    """θ after ROUNDS steps in float64."""
    lr, mu = float(rule.lr), float(rule.momentum)
    t, m, d = theta.double().numpy().copy(), np.zeros(theta.shape), delta.double().numpy()
    for _ in range(ROUNDS):
        m = mu * m + d
        t = t - lr * (d + mu * m)
    return t


def last_digits(theta: torch.Tensor) -> np.ndarray:
    return np.asarray(np.spacing(theta.numpy()), dtype=np.float64)


@pytest.mark.parametrize(("lr", "mu"), [AVERAGE, NESTEROV])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_hundred_tiny_updates_arrive_to_a_few_last_digits(
    codec: str, lr: float, mu: float, tmp_path: Path
) -> None:
    # A loss of half a last digit is made good by the share 1 - μ^(k+1) after k steps; what is open
    # is at most half a digit times 1 + μ² + μ³ + … = 1 + μ²/(1 - μ): 0.5 and 4.55 digits.
    theta, rule = parameters(), Rule.of(lr, mu)
    found = steps(theta, tiny(theta), codec, rule, tmp_path).parameters["w"].double().numpy()
    error = np.abs(found - exact(theta, tiny(theta), rule)) / last_digits(theta)
    assert error.max() <= 0.5 * (1 + mu**2 / (1 - mu)) * 1.01
    moved = np.abs(exact(theta, tiny(theta), rule) - theta.double().numpy()) / last_digits(theta)
    assert moved.min() > 8  # so it is not nothing that arrives


def test_without_what_is_carried_on_a_hundred_tiny_averages_would_be_nothing() -> None:
    theta = parameters()
    plain, momentum, rule = theta.clone(), torch.zeros_like(theta), Rule.of(*AVERAGE)
    for _ in range(ROUNDS):
        step(flat(plain), flat(momentum), flat(tiny(theta)), rule)
    assert torch.equal(plain, theta)


@pytest.mark.parametrize(("lr", "mu"), [AVERAGE, NESTEROV])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "4-bit", "top-k"])
def test_what_parameters_momentum_and_residual_come_to_falls_by_exactly_the_deltas(
    codec: str, lr: float, mu: float, tmp_path: Path
) -> None:
    # Without further deltas, θ would come to rest at θ - ημ²/(1-μ) m - η/(1-μ) e. A delta Δ lowers
    # that by η/(1-μ) Δ, whatever is published of it and whatever θ takes of a move.
    theta, rule = parameters(), Rule.of(lr, mu)
    eta, decay = float(rule.lr), float(rule.momentum)
    delta = torch.randn(theta.shape, generator=torch.Generator().manual_seed(2)) * 1e-4
    state = steps(theta, delta, codec, rule, tmp_path)
    t, m, e = (
        one["w"].double().numpy() for one in (state.parameters, state.momentum, state.residual)
    )
    rest = t - eta * decay**2 / (1 - decay) * m - eta / (1 - decay) * e
    expected = theta.double().numpy() - eta / (1 - decay) * ROUNDS * delta.double().numpy()
    scale = eta / (1 - decay) * (np.abs(m) + np.abs(e) + ROUNDS * np.abs(delta.numpy()))
    # m, e and D are rounded in each round: a few half digits of theirs, never of θ's alone.
    assert (np.abs(rest - expected) <= 6 * ROUNDS * 2.0**-24 * scale + last_digits(theta)).all()
    assert np.abs(rest - expected).max() < 1e-4 * np.abs(rest - theta.double().numpy()).max()


def test_a_rate_too_small_to_move_anything_carries_nothing() -> None:
    assert Rule.of(1e-30, 0.9).carry == 0.0
    assert Rule.of(0.5, 0.5).carry == 1.0
    assert Rule.of(0.7, 0.9).carry == np.float32((1 - 0.9) / 0.7)
