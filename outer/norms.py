"""How large a delta is: the same bits from the same values, on every processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outer.values import max_abs, pieces


@dataclass(frozen=True, slots=True)
class Norms:
    """Of all tensors together: L2 norm (accumulated in float64), largest magnitude, and whether
    every value is finite (where not, the other two are not either)."""

    norm: float
    max_abs: float
    finite: bool


class NormsMeter:
    """The norms of tensors (fp32, any device) that come one by one, in any order."""

    def __init__(self) -> None:
        self._squares: list[float] = []
        self._peak = 0.0
        self.finite = True

    def add(self, tensor: Tensor) -> None:
        """One tensor more. A sum over pieces is exact but for one rounding (`math.fsum`), so only
        the order within a piece matters, and that is ours."""
        peak = max_abs(tensor)
        if not math.isfinite(peak):
            self._peak = math.nan if math.isnan(peak + self._peak) else math.inf
            self.finite = False
        elif self.finite:
            self._peak = max(self._peak, peak)
            self._squares += [_sum(piece.double().square()) for piece in pieces(tensor)]

    def norms(self) -> Norms:
        """Of all that came."""
        if not self.finite:
            return Norms(self._peak, self._peak, False)
        return Norms(math.sqrt(math.fsum(self._squares)), self._peak, True)


def measure(tensors: Mapping[str, Tensor]) -> Norms:
    """The norms over all tensors (fp32, any device)."""
    meter = NormsMeter()
    for tensor in tensors.values():
        meter.add(tensor)
    return meter.norms()


def _sum(values: Tensor) -> float:
    """The sum of a flat tensor in an order of our own, by plain additions: `Tensor.sum` adds in an
    order that depends on the processor, and a verdict on an outlier must not."""
    while (half := values.numel() // 2) > 0:
        if values.numel() % 2:
            values[0] += values[-1]
        values = values[:half] + values[half : 2 * half]
    return float(values)
