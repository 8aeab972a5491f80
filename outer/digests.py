"""The digest of a set of tensors, made of digests of pieces: by several threads, and while a piece
that was just computed is still in the cache (ADR-0016)."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outer.pieces import over_pieces

PIECE = 1 << 18  # elements that have a hash each: part of what the digest is
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorsDigest:
    """sha256 over tensors that come one by one, sorted by name.

    Each contributes the length (8 bytes, little-endian) and text of the sorted JSON {"dtype",
    "name", "shape"}, then the sha256 (32 bytes) of each of its pieces: 262,144 elements, the last
    fewer, as little-endian values. Equal digests mean equal names, dtypes, shapes and bits.
    """

    def __init__(self) -> None:
        self._whole = hashlib.sha256()

    def add(self, name: str, tensor: Tensor, pieces: Iterable[bytes] | None = None) -> None:
        """One more tensor; `pieces`: the digests of its pieces, where they are known already."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        head = {"dtype": dtype, "name": name, "shape": list(tensor.shape)}
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        self._whole.update(len(text).to_bytes(8, "little") + text)
        self._whole.update(b"".join(_of_pieces(tensor) if pieces is None else pieces))

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest (hex) of tensors of any integer or floating dtype (not bool, not complex)."""
    whole = TensorsDigest()
    for name in sorted(tensors):
        whole.add(name, tensors[name].detach())
    return whole.hexdigest()


class PieceDigest:
    """sha256 of one piece that becomes ready bit by bit."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """What follows: a contiguous row of numbers."""
        swapped = values.byteswap() if sys.byteorder == "big" else values
        self._hash.update(swapped.data)

    def digest(self) -> bytes:
        return self._hash.digest()


def of_piece(values: np.ndarray[Any, Any]) -> bytes:
    """sha256 of one piece, a contiguous row of numbers."""
    one = PieceDigest()
    one.add(values)
    return one.digest()


def _of_pieces(tensor: Tensor) -> Sequence[bytes]:
    row = tensor.cpu().contiguous().reshape(-1).view(_UNSIGNED[tensor.element_size()]).numpy()
    return over_pieces(row.size, lambda piece: of_piece(row[piece]), size=PIECE)
