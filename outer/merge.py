"""The merge of a round and the outer step, the same bits everywhere.

    D = Σ wᵢΔᵢ + e          in the order of the cut
    publish Q(D), d = dec(Q(D)), e ← D − d
    m ← μm + d,  θ ← θ − η(d + μm)

What encoding loses stays in the residual e and comes with the next update, so nobody's progress is
rounded away, and everyone who has Q(D) can take the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from outer import codecs
from outer.nesterov import scalar, step_one
from outer.versions import OuterState


def combine(
    deltas: Iterable[tuple[Path, float]], residual: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """D = Σ wᵢΔᵢ + e over (file, weight) pairs in their order; `residual` is unchanged.

    Weights are float64, each rounded to fp32 once; products and sums are fp32, each rounded on its
    own. One tensor of one delta is in memory at a time. Raises DeltaInvalid, and ValueError where
    there is no delta: no delta, no step.
    """
    total: dict[str, Tensor] = {}
    num_deltas = 0
    for path, weight in deltas:
        num_deltas += 1
        for name, delta in codecs.read_like(path, residual):
            total[name] = accumulate(total.get(name), delta, weight)
    if num_deltas == 0:
        raise ValueError("a round without a delta has no step to take")
    return {name: total[name].add_(residual[name]) for name in sorted(total)}


def accumulate(total: Tensor | None, delta: Tensor, weight: float) -> Tensor:
    """total + weight·delta, in place of `total`; the first term is weight·delta itself."""
    term = torch.mul(delta, scalar(weight))
    return term if total is None else total.add_(term)


def take_step(
    state: OuterState,
    deltas: Sequence[tuple[Path, float]],
    *,
    lr: float,
    momentum: float,
    codec: str,
    update_path: Path,
) -> OuterState:
    """Merge the deltas of a cut, write the update Q(D) to `update_path`, and take the step.

    `state` is consumed: the returned state (version + 1) reuses its tensors, so no more than θ,
    m, e, D and Q(D) are in memory: four fp32 models and, where the codec packs, the packed one. It
    is untouched where anything is raised before the update is written: DeltaInvalid (a member),
    NonFinite (D does not fit the codec), OSError.
    """
    merged = combine(deltas, state.residual)
    codecs.encode(merged, codec, update_path)
    for name, update in codecs.read_like(update_path, state.parameters):
        merged[name].sub_(update)
        step_one(state.parameters[name], state.momentum[name], update, lr, momentum)
    return OuterState(state.version + 1, state.parameters, state.momentum, merged)


def apply_update(
    parameters: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
    update_path: Path,
    *,
    lr: float,
    momentum_coefficient: float,
) -> None:
    """What a site does with a published update: the same step in place, without the residual.

    Parameters and momentum are fp32 on the CPU. Raises DeltaInvalid, both untouched, where the file
    is torn, foreign or of other names or shapes.
    """
    codecs.check_like(update_path, parameters)
    for name, update in codecs.read(update_path):
        step_one(parameters[name], momentum[name], update, lr, momentum_coefficient)
