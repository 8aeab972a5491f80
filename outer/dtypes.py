"""What safetensors and numpy call torch's dtypes, and tensors as rows of numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Row = NDArray[Any]  # flat

# In safetensors' own order: it stores wide types first, so that every tensor is aligned.
NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
NUMBERS: dict[torch.dtype, Any] = {  # of numpy, which has no bf16: its bits
    dtype: np.int16 if dtype is torch.bfloat16 else torch.empty(0, dtype=dtype).numpy().dtype
    for dtype in NAMES
}


def of_name(name: str) -> torch.dtype | None:
    """The dtype of one of safetensors' words; None of a word that is unknown here."""
    return next((dtype for dtype, text in NAMES.items() if text == name), None)


def row_of(tensor: torch.Tensor) -> Row:
    """A tensor's values as a row, on the CPU: the same memory where that is contiguous already; of
    bf16 its bits."""
    row = tensor.detach().cpu().contiguous().view(-1)
    return (row.view(torch.int16) if row.dtype is torch.bfloat16 else row).numpy()
