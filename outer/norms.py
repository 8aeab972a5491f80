"""How large a delta is: the same bits from the same values, on every processor."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outer.compiled import compiled
from outer.values import magnitude, peak_bits

_PIECE = 1 << 16  # elements whose squares are summed up in float64 at a time


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
        return self.add_row(tensor.detach().reshape(-1).cpu().numpy())

    def add_row(self, row: NDArray[np.float32]) -> bool:
        """`add` for a row of numpy's."""
        peak = magnitude(peak_bits(row))
        self._peaks.append(peak)
        if not math.isfinite(peak):
            return False
        sums = np.empty(-(-len(row) // _PIECE))
        _sums_of_squares(row, sums, self._buffer())
        self._squares.extend(sums.tolist())
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


@compiled
def _sums_of_squares(
    values: NDArray[np.float32], found: NDArray[np.float64], sums: NDArray[np.float64]
) -> None:
    """`found`: the sum of the squares of each piece of a row, in an order of our own: the second
    half is added to the first, the odd last one to the first one, until one is left. A library's
    sum adds in an order that depends on the processor, and a verdict on an outlier must not.
    `sums`: memory for a piece."""
    for number in range(found.size):
        piece = values[number * _PIECE : (number + 1) * _PIECE]
        left = piece.size
        if left % 2 == 0:
            left //= 2
            for i in range(left):
                one, other = np.float64(piece[i]), np.float64(piece[left + i])
                sums[i] = one * one + other * other
        else:
            for i in range(left):
                sums[i] = np.float64(piece[i]) * np.float64(piece[i])
        while left > 1:
            half = left // 2
            if left % 2:
                sums[0] += sums[left - 1]
            for i in range(half):
                sums[i] += sums[half + i]
            left = half
        found[number] = sums[0]
