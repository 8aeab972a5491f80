"""A self-test of this machine's arithmetic: does it round as every other machine of the run does?

Each canonical operation runs on fixed inputs (hashed, so that no random number generator takes
part) through every corner that machines disagree in: denormals, ties, wide exponents, signed zeros,
tails of vectors, more elements than one thread takes. Digests of the results are compared;
`RunCreated` holds those of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from eventlog.errors import AtollError
from outer.digests import digest
from outer.merge import accumulate
from outer.nesterov import Rule, carry, settle, step
from outer.norms import measure
from outer.packing import CODECS, pack, unpack
from outer.pieces import Array, flat
from outer.topk import num_slots, pack_bits
from outer.topk_chunks import CHUNK

OPERATIONS = ("decode", "merge", "encode", "step", "carry", "settle")
SITE_OPERATIONS = ("decode", "step")  # a site's own encoder may run on any device

# Biased exponents of fp32. Lane i of an input takes range i mod 4 and varies within it, so that the
# terms of one sum are near enough to each other to round, whatever their size.
_LANES = ((0, 1), (1, 24), (110, 16), (180, 12))  # (lowest, how many); 0: denormals, zeros
_SHAPES = ((257, 131), (31,), (), (0, 3))  # the first exceeds what torch gives to one thread
_WEIGHTS = (0.1, 1 / 3, 1 - 0.1 - 1 / 3)
_CODECS = ("fp32", "bf16", "int8", "4-bit", "top-k")  # fixed: one more changes all digests
_NUM_DECODED = 1 << 16  # elements of each codec with scales
_CHUNKS = (*[CHUNK] * 200, 300)  # of top-k: more elements than one thread takes, and a tail
_LR, _MU = 0.7, 0.9


class ArithmeticDiffers(AtollError):
    """This machine, with this version of atoll, computes otherwise than the run does."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the self-test found: a digest (hex) per operation, in order, and one of all."""

    operations: dict[str, str]
    digest: str


def self_test() -> Arithmetic:
    """Run the canonical operations on the fixed inputs, in a fraction of a second; in some ten
    where their loops have to be compiled first.

    The result depends on the processor's arithmetic and this thread's floating-point mode only,
    not on the number of threads.
    """
    results = {name: digest(_RUN[name]()) for name in OPERATIONS}
    lines = "".join(f"{name}:{results[name]}\n" for name in OPERATIONS)
    return Arithmetic(results, hashlib.sha256(lines.encode()).hexdigest())


def check_ours(theirs: Mapping[str, str], otherwise: str, work: str) -> None:
    """Raises ArithmeticDiffers where a canonical operation gives other bits here than in the run.
    `otherwise`: what would come of it; `work`: what is to be done elsewhere."""
    name = first_difference(_ours(), theirs, OPERATIONS)
    if name is not None:
        raise ArithmeticDiffers(
            f"the canonical arithmetic differs from the run's, first in {name!r}: {otherwise}; "
            f"{work} on the kind of machine, and with the version of atoll, that created the run"
        )


@cache
def _ours() -> dict[str, str]:
    """It stays the same as long as this process lives."""
    return self_test().operations


def first_difference(
    ours: Mapping[str, str], theirs: Mapping[str, str], operations: Sequence[str]
) -> str | None:
    """The first of `operations` whose digests differ, or that one side lacks; None: they agree."""
    for name in operations:
        if name not in ours or ours[name] != theirs.get(name):
            return name
    return None


def inputs(label: str) -> dict[str, Tensor]:
    """Finite fp32 tensors that `label` alone determines, with all lanes of exponents."""
    return {f"t{i}": _floats(f"{label} {i}", shape) for i, shape in enumerate(_SHAPES)}


def scaled_parts(codec: str) -> dict[str, Tensor]:
    """Codes and scales (from denormals up to 2^64) of int8 or 4-bit, fixed."""
    lengths, parts = CODECS[codec].lengths(_NUM_DECODED), CODECS[codec].parts
    codes, scales = (inputs(f"{codec} {part}")["t0"].view(-1) for part in ("codes", "scales"))
    return {
        "codes": codes.view(parts["codes"])[: lengths["codes"]],
        "scales": (scales.view(torch.int16)[: lengths["scales"]] & 0x5F7F).view(torch.bfloat16),
    }


def topk_parts() -> tuple[dict[str, Tensor], int]:
    """Places, codes and levels (as `scaled_parts`' scales) of top-k, fixed, made by no encoder: of
    whole chunks and one that keeps few; and of how many elements they are."""
    words = inputs("top-k kept")["t0"].view(-1).view(torch.int32)
    kept, num_used = [], 0
    for size in _CHUNKS:
        slots = num_slots(size)
        word = words[num_used : num_used + slots].view(1, -1)
        num_used += slots
        step = size // slots  # a place in each stretch, so that they ascend
        places = torch.arange(slots) * step + (word >> 2 & 0xFFFF) % step
        kept.append(pack_bits(places, (word & 3).to(torch.uint8)).view(-1))
    levels = inputs("top-k levels")["t0"].view(-1).view(torch.int16)[: 2 * len(_CHUNKS)] & 0x5F7F
    return {"kept": torch.cat(kept), "levels": levels.view(torch.bfloat16)}, sum(_CHUNKS)


def _decode() -> dict[str, Tensor]:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    results = {"bf16": unpack(CODECS["bf16"], {"values": patterns}, torch.empty(1 << 16))}
    for name, tensor in inputs("decode").items():
        results[name] = unpack(CODECS["fp32"], {"values": tensor}, torch.empty(tensor.shape))
    for codec in ("int8", "4-bit"):
        parts = scaled_parts(codec)
        results[codec] = unpack(CODECS[codec], parts, torch.empty(_NUM_DECODED))
    parts, num_elements = topk_parts()
    results["top-k"] = unpack(CODECS["top-k"], parts, torch.empty(num_elements))
    return results


def _merge() -> dict[str, Tensor]:
    totals: dict[str, Array] = {}
    for i, weight in enumerate(_WEIGHTS):
        for name, delta in inputs(f"delta {i}").items():
            totals[name] = accumulate(totals.get(name), flat(delta), np.float32(weight))
    results = inputs("residual")
    for name, residual in results.items():
        np.add(totals[name], flat(residual), out=flat(residual))
    return results


def _encode() -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for name, merged in inputs("merged").items():
        for codec in _CODECS:
            parts = pack(CODECS[codec], merged)
            for part, values in parts.items():
                results[f"{codec}/{part}/{name}"] = values
            decoded = unpack(CODECS[codec], parts, torch.empty(merged.shape))
            np.subtract(flat(merged), flat(decoded), out=flat(decoded))
            results[f"{codec}/residual/{name}"] = decoded
    return results


def _step() -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    momentum, rule = inputs("momentum"), Rule.of(_LR, _MU)
    updates = [inputs(f"update {i}") for i in range(2)]
    for name, parameter in inputs("parameters").items():
        for update in updates:
            step(flat(parameter), flat(momentum[name]), flat(update[name]), rule)
        results[f"parameters/{name}"] = parameter
        results[f"momentum/{name}"] = momentum[name]
    return results


def _carry() -> dict[str, Tensor]:
    results, rule = inputs("residual"), Rule.of(_LR, _MU)
    before, after, move = (inputs(label) for label in ("parameters", "stepped", "move"))
    for name, residual in results.items():
        rows = [flat(one[name]) for one in (before, after, move)]
        carry(flat(residual), rows[0], rows[1], rows[2], rule)
    return results


def _settle() -> dict[str, Tensor]:
    """What a merge does with a piece at once, and the norms that a delta is judged by."""
    results: dict[str, Tensor] = {}
    updates, rule = inputs("update 0"), Rule.of(_LR, _MU)
    state = {label: inputs(label) for label in ("parameters", "momentum", "residual")}
    for name, update in updates.items():
        theta, m, e = (tensors[name] for tensors in state.values())
        settle(flat(theta), flat(m), flat(e), flat(update), rule)
        results |= {f"{label}/{name}": tensors[name] for label, tensors in state.items()}
        norms = measure({name: update.clamp(-1e18, 1e18)})
        results[f"norm/{name}"] = torch.tensor(norms.norm, dtype=torch.float64)
    return results


_RUN: dict[str, Callable[[], dict[str, Tensor]]] = {
    "decode": _decode,
    "merge": _merge,
    "encode": _encode,
    "step": _step,
    "carry": _carry,
    "settle": _settle,
}


def _floats(label: str, shape: tuple[int, ...]) -> Tensor:
    """Sign and mantissa from a hash; the exponent from the lane, varied by the hash."""
    num_elements = int(np.prod(shape, dtype=np.int64))
    stream = hashlib.shake_256(f"atoll arithmetic 1 {label}".encode()).digest(8 * num_elements)
    words = np.frombuffer(stream, dtype="<u4").astype(np.uint32).reshape(2, num_elements)
    lowest, width = np.array(_LANES, dtype=np.uint32)[np.arange(num_elements) % len(_LANES)].T
    bits = (words[0] & np.uint32(0x807FFFFF)) | ((lowest + words[1] % width) << np.uint32(23))
    bits[words[1] % 97 == 0] &= np.uint32(0x80000000)  # some zeros of both signs
    ties = words[1] % 89 == 0
    bits[ties] = (bits[ties] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # halfway in bf16
    return torch.from_numpy(bits.view(np.float32).reshape(shape).copy())
