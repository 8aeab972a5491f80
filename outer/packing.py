"""The codecs: how an fp32 tensor is packed into few bits, and unpacked to the same bits everywhere.

Unpacking is canonical. Both ways work on bit patterns wherever a processor's own conversion could
treat denormals in a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

PIECE = 1 << 16  # elements worked on at a time: temporaries stay small and in the cache


class Codec(Protocol):
    """One way to store an fp32 tensor as named parts. Add one to `CODECS`, and it is readable.

    parts: the stored dtype of each part, in safetensors' words.
    largest: the largest magnitude that stays finite.
    """

    @property
    def parts(self) -> Mapping[str, str]: ...

    @property
    def largest(self) -> float: ...

    def pack(self, tensor: Tensor) -> dict[str, Tensor]:
        """The parts of a finite fp32 tensor on any device."""
        ...

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The fp32 tensor on the CPU. Raises ValueError where the parts do not fit together."""
        ...


class Fp32:
    """Lossless."""

    parts: Mapping[str, str] = {"values": "F32"}
    largest = torch.finfo(torch.float32).max

    def pack(self, tensor: Tensor) -> dict[str, Tensor]:
        return {"values": tensor}

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        return parts["values"]


class Bf16:
    """The upper half of fp32, rounded to nearest, ties to even; denormals are kept."""

    parts: Mapping[str, str] = {"values": "BF16"}
    largest = float.fromhex("0x1.fefffep+127")  # the next fp32 ties to even: to infinity

    def pack(self, tensor: Tensor) -> dict[str, Tensor]:
        half = torch.empty(tensor.shape, dtype=torch.int16, device=tensor.device)
        bits = tensor.contiguous().view(torch.int32)
        for source, target in zip(pieces(bits), pieces(half), strict=True):
            rounded = source >> 16
            rounded &= 1  # a tie goes up only from an odd upper half
            rounded += 0x7FFF
            rounded += source
            rounded >>= 16
            target.copy_(rounded)
        return {"values": half.view(torch.bfloat16)}

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        bits = parts["values"].view(torch.int16).to(torch.int32)
        bits <<= 16
        return bits.view(torch.float32)


CODECS: dict[str, Codec] = {"fp32": Fp32(), "bf16": Bf16()}


def pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """The elements in flat pieces of at most PIECE, views where the tensor is contiguous."""
    return torch.split(tensor.detach().reshape(-1), PIECE)
