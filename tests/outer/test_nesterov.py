"""The outer step against a closed form and against torch's own Nesterov."""

import pytest
import torch

from outer import nesterov
from outer.pieces import flat


def step(
    theta: torch.Tensor, m: torch.Tensor, update: torch.Tensor, lr: float, mu: float
) -> torch.Tensor:
    """One outer step in place; the move."""
    rule = nesterov.Rule.of(lr, mu)
    return torch.from_numpy(nesterov.step(flat(theta), flat(m), flat(update), rule))


def closed_form(n: int, d: float, lr: float, mu: float) -> tuple[float, float]:
    """(momentum, parameter) after n steps of a constant update d from zero:

    m_n = d(1 − μⁿ)/(1 − μ);  θ_n = −η Σ (d + μ m_k) = −ηd [n + μ/(1−μ) (n − μ(1−μⁿ)/(1−μ))].
    """
    series = (1 - mu**n) / (1 - mu)
    return d * series, -lr * d * (n + mu / (1 - mu) * (n - mu * series))


def run(n: int, d: float, lr: float, mu: float) -> tuple[float, float]:
    theta, m = torch.zeros(1), torch.zeros(1)
    for _ in range(n):
        step(theta, m, torch.tensor([d]), lr, mu)
    return float(m), float(theta)


@pytest.mark.parametrize("n", range(1, 12))
def test_constant_update_follows_the_closed_form_exactly_where_fp32_is_exact(n: int) -> None:
    # Halves: every intermediate value has at most 2n binary digits, so nothing is rounded.
    assert run(n, d=1.0, lr=0.5, mu=0.5) == closed_form(n, d=1.0, lr=0.5, mu=0.5)


@pytest.mark.parametrize(("lr", "mu"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.99)])
def test_constant_update_follows_the_closed_form_within_rounding(lr: float, mu: float) -> None:
    # Five roundings of 2^-24 a step, and lr and mu rounded once; 30 steps: below 2e-5.
    for n in (1, 2, 10, 30):
        assert run(n, 0.3, lr, mu) == pytest.approx(closed_form(n, 0.3, lr, mu), rel=2e-5)


def torch_sgd(
    start: torch.Tensor, updates: list[torch.Tensor], lr: float, mu: float
) -> list[torch.Tensor]:
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=mu, dampening=0, nesterov=True)
    trajectory = []
    for update in updates:
        parameter.grad = update.clone()
        optimizer.step()
        trajectory.append(parameter.detach().clone())
    return trajectory


def ours(
    start: torch.Tensor, updates: list[torch.Tensor], lr: float, mu: float
) -> list[torch.Tensor]:
    theta, m = start.clone(), torch.zeros_like(start)
    trajectory = []
    for update in updates:
        step(theta, m, update, lr, mu)
        trajectory.append(theta.clone())
    return trajectory


def test_equals_torch_sgd_bitwise_where_products_are_exact() -> None:
    # torch fuses μm + d and θ − ηg, which round once; with powers of two the products are exact,
    # so both round the same sums in the same order: equal bits, on any values.
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(50, 7, generator=generator)
    updates = [torch.randn(50, 7, generator=generator) for _ in range(8)]
    for theirs, mine in zip(
        torch_sgd(start, updates, 0.5, 0.5), ours(start, updates, 0.5, 0.5), strict=True
    ):
        assert torch.equal(theirs, mine)


def test_equals_torch_sgd_within_rounding_for_the_usual_rates() -> None:
    # Values stay below 30; torch fuses two of five roundings, so after 8 steps the difference is
    # some tens of half-units in the last place: 8 steps * 5 roundings * 30 * 2^-24 < 1e-4.
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(50, 7, generator=generator)
    updates = [torch.randn(50, 7, generator=generator) for _ in range(8)]
    for theirs, mine in zip(
        torch_sgd(start, updates, 0.7, 0.9), ours(start, updates, 0.7, 0.9), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def test_the_update_is_left_as_it_was() -> None:
    update = torch.tensor([1.0, -2.0])
    step(torch.ones(2), torch.ones(2), update, 0.7, 0.9)
    assert update.tolist() == [1.0, -2.0]
