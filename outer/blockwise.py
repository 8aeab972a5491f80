"""Codecs of whole numbers times a scale for each block: int8 and 4-bit (ADR-0011).

A flat tensor is cut into blocks of 128. With L levels on either side of zero (127, or 7), a block's
scale is max|x| / L, rounded up to bf16; x is stored as the whole number nearest to x / scale, ties
to even. What is decoded is that number times the scale: at most 15 bits, which fp32 holds without
rounding. So decoding is exact, and zero stays zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.compiled import compiled
from outer.values import check_range, check_scales, from_bf16, magnitude

BLOCK = 128
_HALF = BLOCK // 2
Row = NDArray[np.float32]


class Blockwise:
    """|x − decoded| ≤ (1/2 + 2^-16) · scale + 2^-143, and scale ≤ (1 + 2^-7) · max|x| / L + 2^-133,
    where max|x| is the block's. Of a block of zeros, and of the smallest denormals, the scale is 0.

    codes: int8, or uint8 in which a block's first half has the low four bits and its second half
    the high ones, in two's complement; a short last block is filled with zeros.
    """

    elementwise = lossless = False
    largest = 2.0**127  # times L / L rounded up, that is still finite

    def __init__(self, bits: int) -> None:
        """Raises ValueError for other than 4 or 8 bits."""
        if bits not in (4, 8):
            raise ValueError(f"{bits} bits: there are codecs of 4 and 8")
        self._packed, self._levels = bits == 4, 2 ** (bits - 1) - 1
        self.parameters: Mapping[str, int] = {"bits": bits, "block": BLOCK}
        self.parts: Mapping[str, torch.dtype] = {
            "codes": torch.uint8 if self._packed else torch.int8,
            "scales": torch.bfloat16,
        }

    def lengths(self, num_elements: int) -> dict[str, int]:
        num_blocks = -(-num_elements // BLOCK)
        return {"codes": num_blocks * (_HALF if self._packed else BLOCK), "scales": num_blocks}

    def pack(self, values: Row) -> dict[str, NDArray[Any]]:
        row = np.pad(values, (0, -len(values) % BLOCK)) if len(values) % BLOCK else values
        num_blocks, levels = len(row) // BLOCK, np.float32(self._levels)
        codes = np.empty(num_blocks * (_HALF if self._packed else BLOCK), np.int8)
        scales, divisors = np.empty(num_blocks, np.int16), np.empty(num_blocks, np.float32)
        peak = _scale(row.view(np.int32), levels, scales, divisors, divisors.view(np.int32))
        check_range(magnitude(peak), self.largest)
        (_quantise_packed if self._packed else _quantise)(row, divisors, codes)
        return {"codes": codes.view(np.uint8) if self._packed else codes, "scales": scales}

    def pack_on_device(self, values: Tensor) -> dict[str, Tensor]:
        blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        peaks = blocks.abs().amax(1)
        check_range(float(peaks.max()), self.largest)
        bits = (peaks / self._levels).view(torch.int32)
        bits += 0xFFFF  # up, so that no quotient is beyond the last level
        bits >>= 16
        scales = bits.to(torch.int16)
        divisors = bits.clamp_(min=1) << 16  # the smallest bf16 instead of 0: quotients are 0
        codes = torch.div(blocks, divisors.view(torch.float32)[:, None]).round_().to(torch.int8)
        if self._packed:
            nibbles = codes.view(torch.uint8)
            packed = nibbles[:, :_HALF] & 15
            packed |= nibbles[:, _HALF:] << 4
            codes = packed
        return {"codes": codes.view(-1), "scales": scales.view(torch.bfloat16)}

    def unpack(self, parts: Mapping[str, NDArray[Any]], out: Row) -> None:
        codes, scales = parts["codes"].view(np.int8), np.empty(len(parts["scales"]), np.float32)
        check_scales(parts["scales"], "scales")
        from_bf16(parts["scales"], scales)
        fill = _decode_packed if self._packed else _decode
        whole = len(out) // BLOCK * BLOCK
        num_blocks, width = whole // BLOCK, _HALF if self._packed else BLOCK
        fill(codes[: num_blocks * width], scales[:num_blocks], out[:whole])
        if rest := len(out) - whole:
            last = np.empty(BLOCK, np.float32)
            fill(codes[num_blocks * width :], np.ones(1, np.float32), last)
            if last[rest:].any():
                raise ValueError("its last block goes on behind the last element")
            out[whole:] = last[:rest] * scales[num_blocks]


@compiled
def _scale(
    bits: NDArray[np.int32],
    levels: np.float32,
    scales: NDArray[np.int16],
    divisors: NDArray[np.float32],
    divisor_bits: NDArray[np.int32],
) -> Any:
    """The scale of each block as bf16, rounded up so that no quotient is beyond the last level, and
    what to divide by: the same, the smallest bf16 instead of 0, so that quotients are 0. Returns
    the bits of the largest magnitude. `divisor_bits`: the memory of `divisors`."""
    largest = np.int32(0)
    for block in range(scales.size):
        peak = np.int32(0)
        for i in range(BLOCK):
            peak = max(peak, bits[block * BLOCK + i] & np.int32(0x7FFFFFFF))
        divisor_bits[block] = peak
        largest = max(largest, peak)
    for block in range(scales.size):
        divisors[block] = divisors[block] / levels
    for block in range(scales.size):
        scale = (divisor_bits[block] + np.int32(0xFFFF)) >> np.int32(16)
        scales[block] = scale
        divisor_bits[block] = max(scale, np.int32(1)) << np.int32(16)
    return largest


@compiled
def _quantise(
    values: NDArray[np.float32], divisors: NDArray[np.float32], codes: NDArray[np.int8]
) -> None:
    for block in range(divisors.size):
        for i in range(block * BLOCK, (block + 1) * BLOCK):
            codes[i] = np.int8(np.int32(np.rint(values[i] / divisors[block])))


@compiled
def _quantise_packed(
    values: NDArray[np.float32], divisors: NDArray[np.float32], codes: NDArray[np.int8]
) -> None:
    for block in range(divisors.size):
        divisor, start = divisors[block], block * BLOCK
        for i in range(_HALF):
            low = np.int32(np.rint(values[start + i] / divisor))
            high = np.int32(np.rint(values[start + _HALF + i] / divisor))
            codes[block * _HALF + i] = np.int8((low & np.int32(15)) | (high << np.int32(4)))


@compiled
def _decode(codes: NDArray[np.int8], scales: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for block in range(scales.size):
        for i in range(block * BLOCK, (block + 1) * BLOCK):
            out[i] = np.float32(codes[i]) * scales[block]


@compiled
def _decode_packed(
    codes: NDArray[np.int8], scales: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    for block in range(scales.size):
        scale, start = scales[block], block * BLOCK
        for i in range(_HALF):
            pair = codes[block * _HALF + i]
            out[start + i] = np.float32(np.int8(pair << 4) >> 4) * scale
            out[start + _HALF + i] = np.float32(pair >> 4) * scale
