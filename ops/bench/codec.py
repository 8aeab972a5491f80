"""What encoding and decoding a model costs, beside one copy of it in memory.

A delta of Qwen3-0.6B, 596,049,920 normal numbers in its shapes, is packed and unpacked tensor by
tensor by one thread; nothing is written. What is timed is that thread's processor time, so that
what else the machine does falls on both sides alike only where they share caches and memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ops.bench.measure import Measure, Progress, Report, Target, at_most, measured
from ops.bench.shapes import MODELS, Shapes, shapes_of
from outer.codecs import Writer
from outer.packing import CODECS, Codec, Parts
from outer.values import pieces

TARGETS = {"4-bit": 10.0, "top-k": 20.0}  # copies
MAX_BYTES = {"4-bit": 0.31e9, "top-k": 17e6}  # of a file, at full size
AGAINST = "one copy of the fp32 model in memory"


@dataclass(slots=True)
class _Times:
    """Seconds of each run."""

    copy: list[float] = field(default_factory=list)
    encode: dict[str, list[float]] = field(default_factory=dict)
    decode: dict[str, list[float]] = field(default_factory=dict)


def run(quick: bool, progress: Progress) -> Report:
    """See `ops.commands.bench`."""
    model = shapes_of(MODELS["qwen3-50m" if quick else "qwen3-0.6b"])
    num_runs = 1 if quick else 3
    num_elements = sum(map(math.prod, model.values()))
    parts = 1 + num_runs * len(CODECS)
    progress("making a delta", 0, parts)
    with _one_thread():
        source = _delta(num_elements)
        target = torch.zeros(num_elements)
        times = _Times()
        for number in range(num_runs):
            for place, codec in enumerate(CODECS):
                progress(
                    f"encoding and decoding in {codec}", 1 + number * len(CODECS) + place, parts
                )
                _run(codec, model, source, target, times)
    sizes = {codec: Writer(Path(codec), codec, model).num_bytes for codec in CODECS}
    notes = (
        f"{num_elements:,} parameters, processor time of one thread; a copy before each codec's "
        "turn, medians of all",
        *(
            f"{codec}: encode {_median(times.encode[codec], times)}, decode "
            f"{_median(times.decode[codec], times)} copies"
            for codec in CODECS
        ),
    )
    measures = [_time(codec, times) for codec in CODECS]
    measures += [_size(codec, sizes, None if quick else MAX_BYTES.get(codec)) for codec in CODECS]
    return Report("codec", tuple(measures), num_runs, notes)


def _run(codec: str, model: Shapes, source: Tensor, target: Tensor, times: _Times) -> None:
    """A copy, then one codec there and back; each over the whole model, so that little of it is
    left in a cache from one to the next."""
    method = CODECS[codec]
    copy = encode = decode = 0.0
    for one, to in _tensors(model, source, target):
        copy += _timed(to.copy_, one)
    for one, to in _tensors(model, source, target):
        packed: list[Parts] = []
        encode += _timed(_encode, method, one, packed)
        decode += _timed(_decode, method, packed, to)
    times.copy.append(copy)
    times.encode.setdefault(codec, []).append(encode)
    times.decode.setdefault(codec, []).append(decode)


def _encode(method: Codec, tensor: Tensor, packed: list[Parts]) -> None:
    for piece in pieces(tensor):
        packed.append(method.pack(piece.numpy()))


def _decode(method: Codec, packed: list[Parts], tensor: Tensor) -> None:
    for parts, piece in zip(packed, pieces(tensor), strict=True):
        method.unpack(parts, piece.numpy())


def _tensors(model: Shapes, source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    start = 0
    for shape in model.values():
        end = start + math.prod(shape)
        yield source[start:end], target[start:end]
        start = end


def _delta(num_elements: int) -> Tensor:
    """Normal numbers of a delta's size. The same in every run."""
    values = torch.empty(num_elements)
    return values.normal_(0.0, 1e-3, generator=torch.Generator().manual_seed(1))


def _timed(work: Callable[..., object], *arguments: object) -> float:
    begin = time.thread_time()
    work(*arguments)
    return time.thread_time() - begin


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _median(values: list[float], times: _Times) -> str:
    measure = measured("", values, "s", against=AGAINST, against_values=times.copy)
    return f"{measure.ratio:.2f}"


def _time(codec: str, times: _Times) -> Measure:
    both = [sum(pair) for pair in zip(times.encode[codec], times.decode[codec], strict=True)]
    target: Target | None = None
    if codec in TARGETS:
        target = at_most(TARGETS[codec], of="ratio")
    return measured(codec, both, "s", against=AGAINST, against_values=times.copy, target=target)


def _size(codec: str, sizes: dict[str, int], limit: float | None) -> Measure:
    return measured(
        f"{codec} bytes",
        [sizes[codec]],
        "bytes",
        against="fp32",
        against_values=sizes["fp32"],
        target=None if limit is None else at_most(limit),
    )
