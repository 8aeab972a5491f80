"""The codec top-k: of each chunk the largest 1 in 64, in 2 bits each (ADR-0011).

A flat tensor is cut into chunks of 4,096, of which the 64 largest magnitudes are kept; of equal
ones those that come first. Places are stored in 12 bits, ascending; a value as its sign and which
of the chunk's two levels is its. The layout is SparseLoCo's (arXiv:2508.15706); the levels are the
mean magnitudes of those above and of those not above the middle between largest and smallest kept
(where fewer than 64 are not zero: of those, and zero). A mean leaves a group no more energy than it
had, so an outlier cannot blow up what it sits beside: error feedback needs that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.topk_chunks import CHUNK, KEPT, fill_chunks, pack_chunks
from outer.values import (
    check_range,
    check_scales,
    from_bf16,
    magnitude,
    nearest_bf16,
    nearest_bf16_on_device,
)

Row = NDArray[np.float32]
_DISORDER = "its places do not ascend within the chunk"


class TopK:
    """Over each chunk of n, of which k are kept with mean magnitude M, in exact arithmetic

        Σ(x − decoded)² ≤ Σx² − (1 − 2^-12) · k·M² + n·2^-264

    and no |x − decoded| is above (1 + 2^-7) · max|x| + 2^-133. A chunk shorter than 4,096 keeps
    4 of each 256 begun, or all it has.

    kept: for each chunk, in slots that k fills up to a multiple of 4 (all others 0): the low eight
    bits of each place; the high four, of the first half of the slots in low bits and of the second
    in high ones; the codes (1: the upper level, 2: negative) of the four quarters, from low bits to
    high. levels: for each chunk the lower and the upper.
    """

    parameters: Mapping[str, int] = {"bits": 2, "chunk": CHUNK, "k": KEPT}
    parts: Mapping[str, torch.dtype] = {"kept": torch.uint8, "levels": torch.bfloat16}
    elementwise = lossless = False
    largest = 2.0**120  # so that a sum of 64 is finite

    def lengths(self, num_elements: int) -> dict[str, int]:
        whole, rest = divmod(num_elements, CHUNK)
        num_bytes = whole * _width(KEPT) + _width(num_slots(rest))
        return {"kept": num_bytes, "levels": 2 * (whole + (rest > 0))}

    def pack(self, values: Row) -> dict[str, NDArray[Any]]:
        whole = len(values) // CHUNK * CHUNK
        kept = np.empty((whole // CHUNK, _width(KEPT)), np.uint8)
        means = np.empty((whole // CHUNK, 2), np.float32)
        peak = pack_chunks(values[:whole], values[:whole].view(np.int32), kept, means)
        check_range(magnitude(peak), self.largest)
        parts: dict[str, NDArray[Any]] = {
            "kept": kept.reshape(-1),
            "levels": nearest_bf16(means).reshape(-1),
        }
        if whole < len(values):
            last = self._pack(torch.from_numpy(values[whole:]).view(1, -1))
            rows = (one.view(-1).numpy() for one in last)
            parts = {k: np.concatenate((parts[k], row)) for k, row in zip(parts, rows, strict=True)}
        return parts

    def pack_on_device(self, values: Tensor) -> dict[str, Tensor]:
        whole = values.numel() // CHUNK * CHUNK
        kept, levels = [], []
        for chunks in (values[:whole].view(-1, CHUNK), values[whole:].view(1, -1)):
            if chunks.numel():
                packed = self._pack(chunks)
                kept.append(packed[0].view(-1))
                levels.append(packed[1].view(-1))
        return {"kept": torch.cat(kept), "levels": torch.cat(levels).view(torch.bfloat16)}

    def unpack(self, parts: Mapping[str, NDArray[Any]], out: Row) -> None:
        kept, levels = parts["kept"], np.empty(len(parts["levels"]), np.float32)
        check_scales(parts["levels"], "levels")
        from_bf16(parts["levels"], levels)
        whole = len(out) // CHUNK * CHUNK
        num_chunks, end = whole // CHUNK, whole // CHUNK * _width(KEPT)
        if not fill_chunks(kept[:end], levels[: 2 * num_chunks].reshape(-1, 2), out[:whole]):
            raise ValueError(_DISORDER)
        if whole < len(out):
            last = torch.from_numpy(out[whole:]).view(1, -1).zero_()
            pair = torch.from_numpy(levels[2 * num_chunks :]).view(1, 2)
            _fill(torch.from_numpy(kept[end:]).view(1, -1), pair, last)

    def _pack(self, chunks: Tensor) -> tuple[Tensor, Tensor]:
        size = chunks.shape[1]
        slots = num_slots(size)
        places = _largest(chunks.view(torch.int32) & 0x7FFFFFFF, min(slots, size))
        values = chunks.gather(1, places)
        magnitudes = values.abs()
        peaks = magnitudes.amax(1, keepdim=True)
        check_range(float(peaks.max()), self.largest)
        least = magnitudes.amin(1, keepdim=True)
        middle = (peaks + least).mul_(0.5).mul_(least > 0)  # 0 where zeros are kept: they stay 0
        upper = magnitudes > middle
        num_upper = upper.sum(1)
        sums = _sum(torch.stack((magnitudes * ~upper, magnitudes * upper)))
        nums = torch.stack((places.shape[1] - num_upper, num_upper)).clamp_(min=1)
        levels = nearest_bf16_on_device((sums / nums).T.contiguous())
        codes = upper.to(torch.uint8)
        codes |= (values < 0).to(torch.uint8) << 1
        return pack_bits(_padded(places, slots), _padded(codes, slots)), levels


def num_slots(size: int) -> int:
    """How many values a chunk of this size keeps, filled up to a multiple of 4."""
    return -(-size // 256) * 4


def _width(slots: int) -> int:
    """Bytes that so many values take: 14 bits each."""
    return slots * 7 // 4


def _largest(magnitudes: Tensor, k: int) -> Tensor:
    """Places (ascending, int64) of the k largest of each row, of equal ones the first: whatever
    finds the k-th largest, its value is one and the same, and the rest is comparisons."""
    limit = _kth(magnitudes, k)[:, None]
    chosen = magnitudes >= limit
    flat = _places(chosen)
    if flat.numel() > magnitudes.shape[0] * k:  # more than k are as large as the k-th
        tied = chosen.sum(1) > k
        rows, limit = magnitudes[tied], limit[tied]
        above = rows > limit
        equal = rows == limit
        first = equal.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True)
        chosen[tied] = above | (equal & first)
        flat = _places(chosen)
    return flat.view(-1, k) % magnitudes.shape[1]


def _kth(magnitudes: Tensor, k: int) -> Tensor:
    """The k-th largest of each row: numpy selects several times as fast as torch."""
    if magnitudes.device.type != "cpu":
        return _kth_on_device(magnitudes, k)
    rank = magnitudes.shape[1] - k
    return torch.from_numpy(np.partition(magnitudes.numpy(), rank, axis=1)[:, rank].copy())


def _kth_on_device(magnitudes: Tensor, k: int) -> Tensor:
    return magnitudes.topk(k, dim=1, sorted=False).values.amin(1)


def _places(chosen: Tensor) -> Tensor:
    """Where it is true, as ascending places in the flat tensor."""
    if chosen.device.type != "cpu":
        return _places_on_device(chosen)
    return torch.from_numpy(np.flatnonzero(chosen.numpy()))


def _places_on_device(chosen: Tensor) -> Tensor:
    return chosen.view(-1).nonzero().view(-1)


def _sum(values: Tensor) -> Tensor:
    """Sums over the last dimension in an order of our own (see `outer.norms`)."""
    while (half := values.shape[-1] // 2) > 0:
        halves = values[..., :half] + values[..., half : 2 * half]
        if values.shape[-1] % 2:
            halves[..., 0] += values[..., -1]
        values = halves
    return values[..., 0]


def _padded(values: Tensor, slots: int) -> Tensor:
    lacking = slots - values.shape[1]
    return torch.nn.functional.pad(values, (0, lacking)) if lacking else values


def pack_bits(places: Tensor, codes: Tensor) -> Tensor:
    """The part `kept` of chunks of equal length, a row each: of their places (integers) and codes
    (uint8), a row a chunk, a column a slot."""
    half, quarter = places.shape[1] // 2, places.shape[1] // 4
    high = (places >> 8).to(torch.uint8)
    fours = codes[:, :quarter].clone()
    for number in (1, 2, 3):
        fours |= codes[:, number * quarter : (number + 1) * quarter] << 2 * number
    low = (places & 255).to(torch.uint8)
    return torch.cat((low, high[:, :half] | high[:, half:] << 4, fours), dim=1)


def _fill(kept: Tensor, levels: Tensor, chunks: Tensor) -> None:
    """Put the kept values where they belong. Raises ValueError."""
    size = chunks.shape[1]
    slots = num_slots(size)
    low, high, fours = kept[:, :slots], kept[:, slots : slots * 3 // 2], kept[:, slots * 3 // 2 :]
    places = torch.cat((high & 15, high >> 4), dim=1).to(torch.int64) << 8
    places |= low
    codes = torch.cat([fours >> 2 * number & 3 for number in range(4)], dim=1)
    if size < slots:
        if places[:, size:].any() or codes[:, size:].any():
            raise ValueError("it keeps more values than it has")
        places, codes = places[:, :size], codes[:, :size]
    if (places[:, 1:] <= places[:, :-1]).any() or int(places[:, -1].max()) >= size:
        raise ValueError(_DISORDER)
    magnitudes = torch.where((codes & 1).bool(), levels[:, 1:], levels[:, :1])
    chunks.scatter_(1, places, torch.where(codes > 1, -magnitudes, magnitudes))
