"""The codecs: how fp32 values are packed into few bits, and unpacked to the same bits everywhere.

A codec works on a flat piece of a tensor at a time; the parts of a tensor are the parts of its
pieces, one behind the other. Unpacking is canonical. Packing works on bit patterns wherever a
processor's own conversion could treat denormals in a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from outer.blockwise import Blockwise
from outer.topk import TopK
from outer.values import check_range, from_bf16, max_abs, nearest_bf16, pieces

Parts = dict[str, Tensor]


class Codec(Protocol):
    """One way to store fp32 values as named parts. Add one to `CODECS`, and it is readable.

    parameters: what a file's header says besides the codec's name; another value is another codec.
    parts: the dtype of each part.
    elementwise: its one part has a number for each element and is stored in the tensor's shape.
    lossless: what is decoded is what was packed, to the bit.
    """

    @property
    def parameters(self) -> Mapping[str, int]: ...

    @property
    def parts(self) -> Mapping[str, torch.dtype]: ...

    @property
    def elementwise(self) -> bool: ...

    @property
    def lossless(self) -> bool: ...

    def lengths(self, num_elements: int) -> dict[str, int]:
        """How many numbers each part has for so many elements. Of a multiple of GRAIN: also where
        the parts of what follows begin."""
        ...

    def pack(self, values: Tensor) -> Parts:
        """The parts of flat fp32 values on any device. Raises OutOfRange."""
        ...

    def unpack(self, parts: Mapping[str, Tensor], out: Tensor) -> None:
        """Write flat fp32 values on the CPU; parts are of the lengths for so many. Raises
        ValueError where they do not fit together."""
        ...


class Fp32:
    """Lossless."""

    parameters: Mapping[str, int] = {}
    parts: Mapping[str, torch.dtype] = {"values": torch.float32}
    elementwise = lossless = True

    def lengths(self, num_elements: int) -> dict[str, int]:
        return {"values": num_elements}

    def pack(self, values: Tensor) -> Parts:
        check_range(max_abs(values), torch.finfo(torch.float32).max)
        return {"values": values}

    def unpack(self, parts: Mapping[str, Tensor], out: Tensor) -> None:
        out.copy_(parts["values"])


class Bf16:
    """The upper half of fp32, rounded to nearest, ties to even; denormals are kept.

    What is decoded differs by at most 2^-8 of the value, or 2^-134.
    """

    parameters: Mapping[str, int] = {}
    parts: Mapping[str, torch.dtype] = {"values": torch.bfloat16}
    elementwise, lossless = True, False
    largest = float.fromhex("0x1.fefffep+127")  # the next fp32 ties to even: to infinity

    def lengths(self, num_elements: int) -> dict[str, int]:
        return {"values": num_elements}

    def pack(self, values: Tensor) -> Parts:
        check_range(max_abs(values), self.largest)
        return {"values": nearest_bf16(values).view(torch.bfloat16)}

    def unpack(self, parts: Mapping[str, Tensor], out: Tensor) -> None:
        from_bf16(parts["values"], out)


CODECS: dict[str, Codec] = {
    "fp32": Fp32(),
    "bf16": Bf16(),
    "int8": Blockwise(8),
    "4-bit": Blockwise(4),
    "top-k": TopK(),
}


def pack(codec: Codec, tensor: Tensor) -> Parts:
    """All parts of an fp32 tensor as they are stored, on the CPU. Raises OutOfRange."""
    found = {part: [torch.empty(0, dtype=dtype)] for part, dtype in codec.parts.items()}
    for piece in pieces(tensor):
        for part, values in codec.pack(piece).items():
            found[part].append(values.cpu())
    shape = tensor.shape if codec.elementwise else (-1,)
    return {part: torch.cat(values).reshape(shape) for part, values in found.items()}


def unpack(codec: Codec, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
    """Write all of a contiguous fp32 tensor on the CPU, and return it. Parts may have any shape.
    Raises ValueError where they are not those of so many elements."""
    lengths = codec.lengths(out.numel())
    flat = {part: values.reshape(-1) for part, values in parts.items()}
    for part, length in lengths.items():
        if flat[part].numel() != length:
            raise ValueError(f"{part} has {flat[part].numel()} numbers, {length} are needed")
    starts = dict.fromkeys(lengths, 0)
    for piece in pieces(out):
        share = {}
        for part, length in codec.lengths(piece.numel()).items():
            share[part] = flat[part][starts[part] : starts[part] + length]
            starts[part] += length
        codec.unpack(share, piece)
    return out
