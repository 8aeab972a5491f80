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

from outer.compiled import compiled
from outer.pieces import Array

_SPAN = 4096  # elements at a time: everything about them fits the smallest cache
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
    move: Array = np.empty_like(parameters)
    _step(parameters, momentum, update, move, rule.lr, rule.momentum)
    return move


def carry(residual: Array, before: Array, parameters: Array, move: Array, rule: Rule) -> None:
    """e ← e + (1−μ)/η · (move − (θ before − θ)), in place."""
    _carry(residual, before, parameters, move, rule.carry)


def settle(parameters: Array, momentum: Array, residual: Array, update: Array, rule: Rule) -> None:
    """What a merge does once D, which `residual` holds, is encoded as `update` d, in place: e ← D −
    d, then `step`, then `carry`."""
    _settle(parameters, momentum, residual, update, rule.lr, rule.momentum, rule.carry)


@compiled
def _step(
    parameters: Array,
    momentum: Array,
    update: Array,
    move: Array,
    lr: np.float32,
    coefficient: np.float32,
) -> None:
    for i in range(parameters.size):
        momentum[i] = momentum[i] * coefficient + update[i]
        move[i] = (momentum[i] * coefficient + update[i]) * lr
        parameters[i] -= move[i]


@compiled
def _carry(
    residual: Array, before: Array, parameters: Array, move: Array, factor: np.float32
) -> None:
    for i in range(residual.size):
        residual[i] += (move[i] - (before[i] - parameters[i])) * factor


@compiled
def _settle(
    parameters: Array,
    momentum: Array,
    residual: Array,
    update: Array,
    lr: np.float32,
    coefficient: np.float32,
    factor: np.float32,
) -> None:
    before, move = np.empty(_SPAN, np.float32), np.empty(_SPAN, np.float32)
    for begin in range(0, parameters.size, _SPAN):
        end = min(begin + _SPAN, parameters.size)
        theta, e, d = parameters[begin:end], residual[begin:end], update[begin:end]
        for i in range(theta.size):
            before[i] = theta[i]
            e[i] -= d[i]
        _step(theta, momentum[begin:end], d, move, lr, coefficient)
        _carry(e, before, theta, move, factor)
