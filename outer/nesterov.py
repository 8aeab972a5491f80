"""The outer step: Nesterov momentum on pseudo-gradients (DiLoCo, arXiv:2311.08105).

    m ← μm + d
    θ ← θ − η(d + μm)

Every product, sum and difference is rounded to fp32 on its own: fused forms (`add(alpha=)`,
`addcmul`, `lerp`) round once where these round twice, and which processor fuses is not ours to say.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def step(
    parameters: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
    update: Mapping[str, Tensor],
    lr: float,
    mu: float,
) -> None:
    """Take one outer step in place; `update` is unchanged.

    All tensors are fp32 on the CPU; the three mappings have the same names and shapes.
    """
    for name in parameters:
        step_one(parameters[name], momentum[name], update[name], lr, mu)


def step_one(parameter: Tensor, momentum: Tensor, update: Tensor, lr: float, mu: float) -> None:
    """`step` for one tensor. lr (η) and mu (μ) are rounded to fp32 once."""
    eta, decay = scalar(lr), scalar(mu)
    momentum.mul_(decay).add_(update)
    move = torch.mul(momentum, decay)
    move.add_(update).mul_(eta)
    parameter.sub_(move)


def scalar(value: float) -> Tensor:
    """A float64 rounded to the nearest fp32, as a tensor without dimensions."""
    return torch.tensor(value, dtype=torch.float32)
