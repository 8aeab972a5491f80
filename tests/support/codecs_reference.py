"""The codecs once more, by loops over numpy scalars: slow, plain, and of their description alone.

What is shared with `outer` is nothing. fp32 operations are numpy's, one at a time.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Parts = dict[str, np.ndarray]  # bf16 as uint16


def bf16(value: float, rounding: str) -> int:
    """The bits of a non-negative number as bf16, rounded "even" or "up"."""
    if value == 0:
        return 0
    spacing = math.ldexp(1.0, max(math.frexp(value)[1] - 8, -133))
    number = value / spacing  # exact: a power of two
    rounded = math.ceil(number) if rounding == "up" else round(number)
    return int(np.float32(rounded * spacing).view(np.uint32)) >> 16


def widened(bits: np.ndarray) -> Floats:
    """The fp32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode_blocks(values: Floats, bits: int) -> Parts:
    levels = 2 ** (bits - 1) - 1
    codes, scales = [], []
    for start in range(0, len(values), 128):
        block = np.zeros(128, np.float32)
        part = values[start : start + 128]
        block[: len(part)] = part
        scale = bf16(float(np.float32(np.abs(block).max()) / np.float32(levels)), "up")
        scales.append(scale)
        divisor = widened(np.array([max(scale, 1)], np.uint16))[0]
        numbers = [int(np.rint(value / divisor)) for value in block]
        assert max(map(abs, numbers)) <= levels
        if bits == 8:
            codes += [number % 256 for number in numbers]
        else:
            codes += [numbers[i] % 16 + 16 * (numbers[i + 64] % 16) for i in range(64)]
    dtype = np.int8 if bits == 8 else np.uint8
    return {"codes": np.array(codes, np.uint8).view(dtype), "scales": np.array(scales, np.uint16)}


def decode_blocks(parts: Parts, num_elements: int, bits: int) -> Floats:
    out = np.zeros(num_elements, np.float32)
    scales, codes = widened(parts["scales"]), parts["codes"].view(np.uint8)
    for place in range(num_elements):
        block, within = divmod(place, 128)
        if bits == 8:
            code = int(codes[128 * block + within])
        else:
            byte = int(codes[64 * block + within % 64])
            code = byte >> 4 if within >= 64 else byte & 15
        signed = code - 2**bits if code >= 2 ** (bits - 1) else code
        out[place] = np.float32(signed) * scales[block]
    return out


def chosen(chunk: Floats) -> list[int]:
    """The places that top-k keeps: the largest, of equal ones the first."""
    k = min(4 * math.ceil(len(chunk) / 256), len(chunk))
    return sorted(sorted(range(len(chunk)), key=lambda i: (-abs(chunk[i]), i))[:k])


def summed(values: list[np.float32]) -> np.float32:
    """First half plus second half until one is left; what is over is added to the first."""
    while len(values) > 1:
        half = len(values) // 2
        halves = [values[i] + values[half + i] for i in range(half)]
        if len(values) % 2:
            halves[0] += values[-1]
        values = halves
    return values[0]


def encode_topk(values: Floats) -> Parts:
    kept, levels = [], []
    zero = np.float32(0)
    for start in range(0, len(values), 4096):
        chunk = values[start : start + 4096]
        slots = 4 * math.ceil(len(chunk) / 256)
        places = chosen(chunk)
        sizes = [abs(chunk[place]) for place in places]
        middle = (max(sizes) + min(sizes)) * np.float32(0.5) if min(sizes) else zero
        upper = [bool(size > middle) for size in sizes]
        for level in (False, True):
            total = summed([s if u is level else zero for s, u in zip(sizes, upper, strict=True)])
            levels.append(bf16(float(total / np.float32(max(upper.count(level), 1))), "even"))
        codes = [u + 2 * bool(chunk[p] < 0) for u, p in zip(upper, places, strict=True)]
        places += [0] * (slots - len(places))
        codes += [0] * (slots - len(codes))
        half, quarter = slots // 2, slots // 4
        kept += [place % 256 for place in places]
        kept += [places[i] // 256 + 16 * (places[half + i] // 256) for i in range(half)]
        kept += [sum(codes[n * quarter + i] * 4**n for n in range(4)) for i in range(quarter)]
    return {"kept": np.array(kept, np.uint8), "levels": np.array(levels, np.uint16)}


def decode_topk(parts: Parts, num_elements: int) -> Floats:
    out, offset = np.zeros(num_elements, np.float32), 0
    levels = widened(parts["levels"])
    for chunk, start in enumerate(range(0, num_elements, 4096)):
        size = min(4096, num_elements - start)
        slots = 4 * math.ceil(size / 256)
        half, quarter = slots // 2, slots // 4
        kept = [int(byte) for byte in parts["kept"][offset : offset + slots * 7 // 4]]
        offset += slots * 7 // 4
        for i in range(min(slots, size)):
            high = kept[slots + i % half] >> (4 if i >= half else 0) & 15
            code = kept[slots + half + i % quarter] >> 2 * (i // quarter) & 3
            level = levels[2 * chunk + code % 2]
            out[start + kept[i] + 256 * high] = -level if code >= 2 else level
    return out


def encode(codec: str, values: Floats) -> Parts:
    """The parts of flat finite values under a lossy codec that is not elementwise."""
    if codec == "top-k":
        return encode_topk(values)
    return encode_blocks(values, {"int8": 8, "4-bit": 4}[codec])


def decode(codec: str, parts: Parts, num_elements: int) -> Floats:
    """And back."""
    if codec == "top-k":
        return decode_topk(parts, num_elements)
    return decode_blocks(parts, num_elements, {"int8": 8, "4-bit": 4}[codec])
