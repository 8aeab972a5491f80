"""Whole chunks of the codec top-k on the CPU: compiled loops that give the bits of `outer.topk`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outer.compiled import compiled

CHUNK = 4096
KEPT = 64
_COLUMNS = 256  # of a chunk, of 16 elements each: a chunk is looked at as so many


@compiled
def pack_chunks(
    values: NDArray[np.float32],
    bits: NDArray[np.int32],
    kept: NDArray[np.uint8],
    levels: NDArray[np.float32],
) -> Any:
    """Fill `kept` and the two `levels` of each chunk; the bits of the largest magnitude. `bits`:
    the memory of `values`."""
    places = np.empty(CHUNK, np.int32)
    near = np.empty(CHUNK, np.int32)
    tops = np.empty(_COLUMNS, np.int32)
    codes = np.empty(KEPT, np.uint8)
    groups = np.empty((2, KEPT), np.float32)
    largest = np.int32(0)
    for chunk in range(kept.shape[0]):
        start = chunk * CHUNK
        row = bits[start : start + CHUNK]
        largest = max(largest, _choose(row, places, near, tops))
        peak = least = np.abs(values[start + places[0]])
        for slot in range(KEPT):
            size = np.abs(values[start + places[slot]])
            peak, least = max(peak, size), min(least, size)
        middle = np.float32(0)
        if least > 0:
            middle = (peak + least) * np.float32(0.5)
        num_upper = 0
        for slot in range(KEPT):
            value = values[start + places[slot]]
            size = np.abs(value)
            upper = size > middle
            num_upper += upper
            groups[0, slot] = np.float32(0) if upper else size
            groups[1, slot] = size if upper else np.float32(0)
            codes[slot] = np.uint8(upper) | np.uint8(value < 0) << 1
        half = KEPT // 2
        while half > 0:  # the order of `outer.topk`'s own sums
            for group in range(2):
                for slot in range(half):
                    groups[group, slot] += groups[group, half + slot]
            half //= 2
        levels[chunk, 0] = groups[0, 0] / np.float32(max(KEPT - num_upper, 1))
        levels[chunk, 1] = groups[1, 0] / np.float32(max(num_upper, 1))
        _write_bits(places, codes, kept[chunk])
    return largest


@compiled
def _choose(
    bits: NDArray[np.int32],
    places: NDArray[np.int32],
    near: NDArray[np.int32],
    tops: NDArray[np.int32],
) -> Any:
    """Put the places of the KEPT largest magnitudes first in `places`, ascending, of equal ones the
    first; the largest one's bits.

    The KEPT-th largest of the columns' maxima is no more than the KEPT-th largest of all, so only
    columns that reach it are looked at. `near`, `tops`: memory."""
    tops[:] = 0
    for begin in range(0, CHUNK, _COLUMNS):
        for column in range(_COLUMNS):
            size = bits[begin + column] & np.int32(0x7FFFFFFF)
            tops[column] = max(tops[column], size)
    bound = max(np.partition(tops, _COLUMNS - KEPT)[_COLUMNS - KEPT], np.int32(1))
    largest, num = np.int32(0), 0
    for column in range(_COLUMNS):
        largest = max(largest, tops[column])
        if tops[column] >= bound:
            for place in range(column, CHUNK, _COLUMNS):
                size = bits[place] & np.int32(0x7FFFFFFF)
                if size >= bound:
                    places[num] = place
                    near[num] = size
                    num += 1
    if num < KEPT:  # all that are not zero; the first zeros with them
        place = 0
        while num < KEPT:
            if bits[place] & np.int32(0x7FFFFFFF) == 0:
                places[num] = place
                num += 1
            place += 1
        places[:KEPT] = np.sort(places[:KEPT])
        return largest
    limit = np.partition(near[:num], num - KEPT)[num - KEPT]
    reach, equal = 0, KEPT
    for i in range(num):
        if near[i] >= limit:
            equal -= near[i] > limit
            places[reach] = places[i]
            reach += 1
    places[:reach] = np.sort(places[:reach])
    done = 0
    for i in range(reach):
        if bits[places[i]] & np.int32(0x7FFFFFFF) > limit:
            places[done] = places[i]
            done += 1
        elif equal > 0:
            places[done] = places[i]
            done += 1
            equal -= 1
    return largest


@compiled
def _write_bits(
    places: NDArray[np.int32], codes: NDArray[np.uint8], kept: NDArray[np.uint8]
) -> None:
    half, quarter = KEPT // 2, KEPT // 4
    for slot in range(KEPT):
        kept[slot] = places[slot] & 255
    for slot in range(half):
        kept[KEPT + slot] = places[slot] >> 8 | places[half + slot] >> 8 << 4
    for slot in range(quarter):
        four = np.uint8(0)
        for number in range(4):
            four |= codes[number * quarter + slot] << 2 * number
        kept[KEPT + half + slot] = four


@compiled
def fill_chunks(
    kept: NDArray[np.uint8], levels: NDArray[np.float32], out: NDArray[np.float32]
) -> bool:
    """Zeros, and the kept values where they belong; whether all places ascend."""
    width, half, quarter = KEPT * 7 // 4, KEPT // 2, KEPT // 4
    good = True
    out[:] = 0
    for chunk in range(levels.shape[0]):
        begin, last = chunk * width, np.int32(-1)
        for slot in range(KEPT):
            high = kept[begin + KEPT + slot % half] >> 4 * (slot // half) & 15
            place = np.int32(kept[begin + slot]) | np.int32(high) << 8
            if place <= last:
                good = False
            last = place
            code = kept[begin + KEPT + half + slot % quarter] >> 2 * (slot // quarter)
            size = levels[chunk, code & 1]
            out[chunk * CHUNK + place] = -size if code & 2 else size
    return good
