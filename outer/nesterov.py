"""The outer step, and what the coordinator carries on of it.

    m ← μm + d
    θ ← θ − η(d + μm)          Nesterov momentum on pseudo-gradients (DiLoCo, arXiv:2311.08105)
    e ← e + (1−μ)/η · loss     loss: what θ's rounding left undone of the move η(d + μm)

θ has 24 binary digits: a move below half its last digit changes nothing, and every move is rounded
to it. The loss goes into the residual, so the next update brings it: an impulse x in d moves θ by
ηx(1 + μ + μ² + …) = ηx/(1−μ) in the end, hence the factor (ADR-0017).

Every product, sum and difference is rounded to fp32 on its own: fused forms (`add(alpha=)`,
`addcmul`, `lerp`) round once where these round twice, and which processor fuses is not ours to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outer.pieces import Array

_LEAST_LR = 2.0**-40  # below it a step moves nothing that fp32 could hold, and 1/η means nothing


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of one outer step, each computed in float64 and rounded to fp32 once.

    lr: η. momentum: μ. carry: (1 − μ)/η, or 0 where η is too small to move anything.
    """

    lr: np.float32
    momentum: np.float32
    carry: np.float32

    @classmethod
    def of(cls, lr: float, momentum: float) -> Rule:
        """lr in [0, ∞), momentum in [0, 1)."""
        carry = (1.0 - momentum) / lr if lr >= _LEAST_LR else 0.0
        return cls(np.float32(lr), np.float32(momentum), np.float32(carry))


def step(parameters: Array, momentum: Array, update: Array, rule: Rule) -> Array:
    """One outer step in place, on rows of fp32 of equal length; `update` is unchanged. The move
    η(d + μm) is returned: what θ was to change by."""
    np.multiply(momentum, rule.momentum, out=momentum)
    np.add(momentum, update, out=momentum)
    move: Array = np.multiply(momentum, rule.momentum)
    np.add(move, update, out=move)
    np.multiply(move, rule.lr, out=move)
    np.subtract(parameters, move, out=parameters)
    return move


def carry(residual: Array, before: Array, parameters: Array, move: Array, rule: Rule) -> None:
    """e ← e + (1−μ)/η · (move − (θ before − θ)), in place; `before` and `move` are used up."""
    np.subtract(before, parameters, out=before)
    np.subtract(move, before, out=move)
    np.multiply(move, rule.carry, out=move)
    np.add(residual, move, out=residual)
