"""Codecs of whole numbers times a scale for each block: int8 and 4-bit (ADR-0011).

A flat tensor is cut into blocks of 128. With L levels on either side of zero (127, or 7), a block's
scale is max|x| / L, rounded up to bf16; x is stored as the whole number nearest to x / scale, ties
to even. What is decoded is that number times the scale: at most 15 bits, which fp32 holds without
rounding. So decoding is exact, and zero stays zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outer.values import check_range, check_scales, from_bf16

BLOCK = 128
_HALF = BLOCK // 2


class Blockwise:
    """|x − decoded| ≤ (1/2 + 2^-16) · scale, and scale ≤ (1 + 2^-7) · max|x| / L + 2^-133, where
    max|x| is the block's. Of a block of zeros the scale is 0.

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

    def pack(self, values: Tensor) -> dict[str, Tensor]:
        blocks = _blocks(values)
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

    def unpack(self, parts: Mapping[str, Tensor], out: Tensor) -> None:
        check_scales(parts["scales"], "scales")
        whole = out.numel() // BLOCK * BLOCK
        num_blocks, width = whole // BLOCK, _HALF if self._packed else BLOCK
        codes, scales = parts["codes"].view(-1, width), from_bf16(parts["scales"])
        if whole:
            self._fill(codes[:num_blocks], scales[:num_blocks], out[:whole].view(-1, BLOCK))
        if rest := out.numel() - whole:
            last = torch.empty(1, BLOCK)
            self._fill(codes[num_blocks:], torch.ones(1), last)
            if last[0, rest:].any():
                raise ValueError("its last block goes on behind the last element")
            out[whole:] = last[0, :rest].mul_(scales[num_blocks])

    def _fill(self, codes: Tensor, scales: Tensor, blocks: Tensor) -> None:
        if self._packed:
            pairs = codes.view(torch.int8)
            blocks[:, _HALF:] = pairs >> 4  # carries the sign down
            blocks[:, :_HALF] = (pairs << 4).bitwise_right_shift_(4)
        else:
            blocks.copy_(codes)
        blocks.mul_(scales[:, None])


def _blocks(values: Tensor) -> Tensor:
    if (rest := values.numel() % BLOCK) == 0:
        return values.view(-1, BLOCK)
    return torch.nn.functional.pad(values, (0, BLOCK - rest)).view(-1, BLOCK)
