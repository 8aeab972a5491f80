"""How large a delta is: the same bits from the same values, on every processor."""

from __future__ import annotations

import math
import threading
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
    """The norms of tensors (fp32, any device) that come one by one, in any order, by any thread."""

    def __init__(self) -> None:
        self._squares: list[float] = []
        self._peaks: list[float] = []
        self._local = threading.local()

    def add(self, tensor: Tensor) -> bool:
        """One tensor more; whether all of it is finite. A sum over pieces is exact but for one
        rounding (`math.fsum`), so only the order within a piece matters, and that is ours."""
        peak = max_abs(tensor)
        self._peaks.append(peak)
        if not math.isfinite(peak):
            return False
        row = tensor.detach().reshape(-1).cpu().numpy()
        for start in range(0, len(row), _PIECE):
            squares = self._buffer()[: len(row) - start]
            np.copyto(squares, row[start : start + _PIECE])
            self._squares.append(_sum(np.multiply(squares, squares, out=squares)))
        return True

    def norms(self) -> Norms:
        """Of all that came."""
        odd = [peak for peak in self._peaks if not math.isfinite(peak)]
        if odd:
            worst = math.nan if any(map(math.isnan, odd)) else math.inf
            return Norms(worst, worst, False)
        return Norms(math.sqrt(math.fsum(self._squares)), max(self._peaks, default=0.0), True)

    def _buffer(self) -> NDArray[np.float64]:
        """Of this thread: memory that is there already."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = np.empty(_PIECE)
        buffer: NDArray[np.float64] = self._local.buffer
        return buffer


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
