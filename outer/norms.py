"""How large a delta is: the same bits from the same values, on every processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outer.values import max_abs

_PIECE = 1 << 16  # squares in float64 at a time: they stay in the cache


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
        self._buffer = np.empty(_PIECE)
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
            row = tensor.detach().reshape(-1).cpu().numpy()
            for start in range(0, len(row), _PIECE):
                squares = self._buffer[: len(row) - start]
                np.copyto(squares, row[start : start + _PIECE])
                self._squares.append(_sum(np.multiply(squares, squares, out=squares)))

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


def _sum(values: NDArray[np.float64]) -> float:
    """The sum of a row, which is used up, in an order of our own, by plain additions: a library's
    sum adds in an order that depends on the processor, and a verdict on an outlier must not."""
    while (half := len(values) // 2) > 0:
        if len(values) % 2:
            values[0] += values[-1]
        values = np.add(values[:half], values[half : 2 * half], out=values[:half])
    return float(values[0])
