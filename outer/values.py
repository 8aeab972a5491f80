"""Tensors in flat pieces, so that what is done to them stays in the cache; bf16 by bit patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.compiled import compiled

GRAIN = 4096  # a piece begins at a multiple of this: no codec's block or chunk is cut
PIECE = 1 << 18  # elements worked on at a time on the CPU: some fit its cache, and calls are few
DEVICE_PIECE = 1 << 22  # the same on an accelerator, where each operation costs a launch


class OutOfRange(Exception):
    """Values that a codec cannot hold. peak: the largest magnitude, or NaN."""

    def __init__(self, peak: float) -> None:
        super().__init__(f"largest magnitude {peak}")
        self.peak = peak


def pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """The elements in flat pieces, views where the tensor is contiguous; none of no elements."""
    size = PIECE if tensor.device.type == "cpu" else DEVICE_PIECE
    return torch.split(tensor.detach().reshape(-1), size) if tensor.numel() else ()


def max_abs(tensor: Tensor) -> float:
    """The largest magnitude, 0.0 of no elements; NaN where there is one."""
    return magnitude(max((_peak(piece) for piece in pieces(tensor)), default=0))


def peak_bits(row: NDArray[np.float32]) -> int:
    """The bits of the largest magnitude of a row (see `magnitude`)."""
    return int(_largest(row.view(np.int32)))


def magnitude(bits: int) -> float:
    """The fp32 whose bits, but for the sign, these are: they ascend as magnitudes do, NaN last."""
    return float(np.array(bits, np.int32).view(np.float32))


def _peak(piece: Tensor) -> int:
    if piece.device.type != "cpu":
        return int((piece.view(torch.int32) & 0x7FFFFFFF).max())
    return peak_bits(piece.numpy())


@compiled
def _largest(bits: NDArray[np.int32]) -> Any:
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
    return largest


def check_range(peak: float, largest: float) -> None:
    """Raises OutOfRange where the peak is above the largest, or NaN."""
    if not peak <= largest:
        raise OutOfRange(peak)


def nearest_bf16(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """fp32 rounded to the nearest bf16, ties to even; the bits. Denormals are kept, on a processor
    of any mood. What is not finite, or rounds to infinity, is the caller's to exclude."""
    out = np.empty(values.shape, np.int16)
    _round_to_bf16(values.reshape(-1).view(np.int32), out.reshape(-1))
    return out


def nearest_bf16_on_device(values: Tensor) -> Tensor:
    """The same on an accelerator."""
    bits = values.view(torch.int32)
    rounded = bits >> 16
    rounded &= 1  # a tie goes up only from an odd upper half
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.to(torch.int16)


def from_bf16(bits: NDArray[np.int16], out: NDArray[np.float32]) -> None:
    """Write the fp32 values of bf16, to the bit."""
    _widen(bits, out.view(np.int32))


def check_scales(bits: NDArray[np.int16], what: str) -> None:
    """Raises ValueError unless every bf16 is finite and not negative (a negative zero is)."""
    if len(bits) and (bits.min() < 0 or bits.max() >= 0x7F80):
        raise ValueError(f"one of its {what} is negative or not finite")


@compiled
def _round_to_bf16(bits: NDArray[np.int32], out: NDArray[np.int16]) -> None:
    for i in range(bits.size):
        odd = (bits[i] >> np.int32(16)) & np.int32(1)
        out[i] = (bits[i] + np.int32(0x7FFF) + odd) >> np.int32(16)


@compiled
def _widen(bits: NDArray[np.int16], out: NDArray[np.int32]) -> None:
    for i in range(bits.size):
        out[i] = np.int32(bits[i]) << np.int32(16)
