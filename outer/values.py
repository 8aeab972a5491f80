"""Tensors in flat pieces, so that what is done to them stays in the cache; bf16 by bit patterns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GRAIN = 4096  # a piece begins at a multiple of this: no codec's block or chunk is cut
# elements worked on at a time on the CPU: few calls, and all in the cache; digests have a hash each
PIECE = 1 << 18
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
    peaks = [_peak(piece) for piece in pieces(tensor)]
    return math.nan if any(map(math.isnan, peaks)) else max(peaks, default=0.0)


def _peak(piece: Tensor) -> float:
    if piece.device.type != "cpu":
        return float(piece.abs().max())
    row = piece.numpy()  # whose reductions are several times as fast as torch's
    return abs(max(float(row.max()), -float(row.min())))


def check_range(peak: float, largest: float) -> None:
    """Raises OutOfRange where the peak is above the largest, or NaN."""
    if not peak <= largest:
        raise OutOfRange(peak)


def nearest_bf16(values: Tensor) -> Tensor:
    """fp32 rounded to the nearest bf16, ties to even; the bits, as int16. Denormals are kept, on a
    processor of any mood. What is not finite, or rounds to infinity, is the caller's to exclude."""
    bits = values.view(torch.int32)
    rounded = bits >> 16
    rounded &= 1  # a tie goes up only from an odd upper half
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.to(torch.int16)


def from_bf16(values: Tensor, out: Tensor | None = None) -> Tensor:
    """The fp32 values of bf16, to the bit, into `out` where it is given."""
    bits = torch.empty(values.shape, dtype=torch.int32) if out is None else out.view(torch.int32)
    bits.copy_(values.view(torch.int16))
    bits <<= 16
    return bits.view(torch.float32)


def check_scales(scales: Tensor, what: str) -> None:
    """Raises ValueError unless every bf16 is finite and not negative (a negative zero is)."""
    bits = scales.view(torch.int16)
    if bits.numel() and (int(bits.min()) < 0 or int(bits.max()) >= 0x7F80):
        raise ValueError(f"one of its {what} is negative or not finite")
