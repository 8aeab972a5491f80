"""The codecs: how fp32 values are packed into few bits, and unpacked to the same bits everywhere.

A codec works on a flat piece of a tensor at a time; the parts of a tensor are the parts of its
pieces, one behind the other. Unpacking is canonical. Packing works on bit patterns wherever a
processor's own conversion could treat denormals in a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.blockwise import Blockwise
from outer.dtypes import row_of
from outer.topk import TopK
from outer.values import (
    check_range,
    from_bf16,
    magnitude,
    max_abs,
    nearest_bf16,
    nearest_bf16_on_device,
    peak_bits,
    pieces,
)

Row = NDArray[np.float32]
Parts = dict[str, NDArray[Any]]  # rows; bf16 as its bits


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

    def pack(self, values: Row) -> Parts:
        """The parts of flat values. Raises OutOfRange."""
        ...

    def pack_on_device(self, values: Tensor) -> dict[str, Tensor]:
        """The same for flat values on an accelerator, there. Raises OutOfRange."""
        ...

    def unpack(self, parts: Parts, out: Row) -> None:
        """Write flat values; parts are of the lengths for so many. Raises ValueError where they do
        not fit together."""
        ...


class Fp32:
    """Lossless."""

    parameters: Mapping[str, int] = {}
    parts: Mapping[str, torch.dtype] = {"values": torch.float32}
    elementwise = lossless = True
    largest = torch.finfo(torch.float32).max

    def lengths(self, num_elements: int) -> dict[str, int]:
        return {"values": num_elements}

    def pack(self, values: Row) -> Parts:
        check_range(magnitude(peak_bits(values)), self.largest)
        return {"values": values}

    def pack_on_device(self, values: Tensor) -> dict[str, Tensor]:
        check_range(max_abs(values), self.largest)
        return {"values": values}

    def unpack(self, parts: Parts, out: Row) -> None:
        np.copyto(out, parts["values"])


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

    def pack(self, values: Row) -> Parts:
        check_range(magnitude(peak_bits(values)), self.largest)
        return {"values": nearest_bf16(values)}

    def pack_on_device(self, values: Tensor) -> dict[str, Tensor]:
        check_range(max_abs(values), self.largest)
        return {"values": nearest_bf16_on_device(values).view(torch.bfloat16)}

    def unpack(self, parts: Parts, out: Row) -> None:
        from_bf16(parts["values"], out)


CODECS: dict[str, Codec] = {
    "fp32": Fp32(),
    "bf16": Bf16(),
    "int8": Blockwise(8),
    "4-bit": Blockwise(4),
    "top-k": TopK(),
}


def pack_piece(codec: Codec, values: Tensor) -> Parts:
    """The parts of flat values on any device, on the CPU. Raises OutOfRange."""
    if values.device.type == "cpu":
        return codec.pack(values.numpy())
    return {part: row_of(found) for part, found in codec.pack_on_device(values).items()}


def pack(codec: Codec, tensor: Tensor) -> dict[str, Tensor]:
    """All parts of an fp32 tensor as they are stored, on the CPU. Raises OutOfRange."""
    found = {part: [torch.empty(0, dtype=dtype)] for part, dtype in codec.parts.items()}
    for piece in pieces(tensor):
        for part, values in pack_piece(codec, piece).items():
            found[part].append(torch.from_numpy(values).view(codec.parts[part]))
    shape = tensor.shape if codec.elementwise else (-1,)
    return {part: torch.cat(values).reshape(shape) for part, values in found.items()}


def unpack(codec: Codec, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
    """Write all of a contiguous fp32 tensor on the CPU, and return it. Parts may have any shape.
    Raises ValueError where they are not those of so many elements."""
    lengths = codec.lengths(out.numel())
    rows = {part: row_of(values) for part, values in parts.items()}
    for part, length in lengths.items():
        if len(rows[part]) != length:
            raise ValueError(f"{part} has {len(rows[part])} numbers, {length} are needed")
    starts = dict.fromkeys(lengths, 0)
    for piece in pieces(out):
        share = {}
        for part, length in codec.lengths(piece.numel()).items():
            share[part] = rows[part][starts[part] : starts[part] + length]
            starts[part] += length
        codec.unpack(share, piece.numpy())
    return out
