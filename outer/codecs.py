"""Deltas and merged updates as files that say themselves how they were encoded.

The file's header names codec and format; each part that the codec makes of a tensor is stored as
`part/name`. Reading gives canonical fp32: bits that depend on the file's bytes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eventlog.errors import AtollError
from outer import tensorfile
from outer.packing import CODECS, Codec, pieces
from outer.tensorfile import Reader, TensorFileInvalid

FORMAT = 1

InvalidCode = Literal["blob", "form", "nonfinite"]


class NonFinite(AtollError):
    """A tensor holds NaN, an infinity, or a value that its codec would turn into one."""

    def __init__(self, tensor: str, why: str) -> None:
        super().__init__(f"tensor {tensor!r} {why}; nothing was written")
        self.tensor = tensor


class DeltaInvalid(AtollError):
    """A file is not the delta it should be.

    code: "blob" torn or no tensor file; "form" another codec, other names, shapes or dtypes;
    "nonfinite" NaN or infinity among its values.
    """

    def __init__(self, code: InvalidCode, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True)
class Norms:
    """Of all tensors together: L2 norm (accumulated in float64), largest magnitude, and whether
    every value is finite (where not, the other two are not either)."""

    norm: float
    max_abs: float
    finite: bool


def encode(tensors: Mapping[str, Tensor], codec: str, path: Path) -> None:
    """Write fp32 tensors under a codec of `CODECS`; equal tensors give equal bytes.

    `path` appears whole or not at all. Raises NonFinite, naming the first tensor (sorted) with NaN,
    infinity or a value beyond the codec's range; then nothing is written.
    """
    method = CODECS[codec]
    stored: dict[str, Tensor] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        if tensor.dtype is not torch.float32:
            raise TypeError(f"tensor {name!r} is {tensor.dtype}, a delta is torch.float32")
        largest = _max_abs(tensor)
        if not math.isfinite(largest):
            raise NonFinite(name, "holds NaN or infinity")
        if largest > method.largest:
            raise NonFinite(name, f"holds {largest:g}, which {codec} cannot hold")
        for part, values in method.pack(tensor).items():
            stored[f"{part}/{name}"] = values.cpu().contiguous()
    tensorfile.write(stored, path, {"codec": codec, "format": FORMAT})


def codec_of(path: Path) -> str:
    """The codec that a file names. Raises DeltaInvalid ("blob" or "form")."""
    with _opened(path) as reader:
        return _codec(reader)


def read(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and canonical fp32 tensor (CPU, memory of its own), one by one in sorted order.

    Raises DeltaInvalid ("blob" or "form"). Values are not looked at: NaN passes.
    """
    with _opened(path) as reader:
        method = CODECS[_codec(reader)]
        for name in _names(reader, method):
            yield name, _unpack(reader, method, name)


def decode(path: Path) -> dict[str, Tensor]:
    """All of `read` at once."""
    return dict(read(path))


def read_like(path: Path, reference: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Like `read`, and checks that names (before the first tensor comes) and shapes (as each
    comes) are those of `reference`. Raises DeltaInvalid ("blob" or "form")."""
    with _opened(path) as reader:
        method = CODECS[_codec(reader)]
        _compare_names(path, _names(reader, method), sorted(reference))
        for name in sorted(reference):
            tensor, shape = _unpack(reader, method, name), reference[name].shape
            if tensor.shape != shape:
                raise DeltaInvalid(
                    "form",
                    f"{path.name} has {name!r} of shape {list(tensor.shape)}, "
                    f"the model has {list(shape)}",
                )
            yield name, tensor


def check_like(path: Path, reference: Mapping[str, Tensor]) -> None:
    """The file is whole and has the names and shapes of `reference`, or DeltaInvalid is raised."""
    for _ in read_like(path, reference):
        pass


def validate_delta(path: Path, reference: Mapping[str, Tensor], codec: str) -> Norms:
    """The norms of a delta that can be merged: whole, of the claimed codec, with the names and
    shapes of `reference`, all finite. Raises DeltaInvalid, whose `code` says which does not hold.
    """
    actual = codec_of(path)
    if actual != codec:
        raise DeltaInvalid("form", f"{path.name} is encoded as {actual}, it was said to be {codec}")
    return _norms(_all_finite(path, reference))


def measure(tensors: Mapping[str, Tensor]) -> Norms:
    """The norms over all tensors (fp32, any device); the same bits from the same values."""
    return _norms(tensors.items())


def _norms(tensors: Iterable[tuple[str, Tensor]]) -> Norms:
    squares, largest = [0.0], [0.0]
    for _, tensor in tensors:
        for piece in pieces(tensor):
            squares.append(_sum(piece.double().square()))
        largest.append(_max_abs(tensor))
    if not all(map(math.isfinite, largest)):
        worst = math.nan if any(map(math.isnan, largest)) else math.inf
        return Norms(worst, worst, False)
    return Norms(math.sqrt(math.fsum(squares)), max(largest), True)


def _sum(values: Tensor) -> float:
    """The sum of a flat tensor in an order of our own, by plain additions: `Tensor.sum` adds in an
    order that depends on the processor, and a verdict on an outlier must not."""
    while (half := values.numel() // 2) > 0:
        pairs = values[:half] + values[half : 2 * half]
        values = torch.cat([pairs, values[2 * half :]]) if values.numel() % 2 else pairs
    return float(values.sum())


def _all_finite(path: Path, reference: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in read_like(path, reference):
        if not math.isfinite(_max_abs(tensor)):
            raise DeltaInvalid("nonfinite", f"{path.name} has NaN or infinity in {name!r}")
        yield name, tensor


def _max_abs(tensor: Tensor) -> float:
    """The largest magnitude, 0.0 of no elements; NaN where there is one."""
    peaks = [piece.abs().max() for piece in pieces(tensor) if piece.numel()]
    return float(torch.stack(peaks).max()) if peaks else 0.0


@contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    try:
        with tensorfile.reading(path) as reader:
            yield reader
    except TensorFileInvalid as error:
        raise DeltaInvalid("blob", str(error)) from error


def _codec(reader: Reader) -> str:
    header = reader.header
    if header is None or "codec" not in header:
        raise DeltaInvalid("form", f"{reader.path.name} is no delta: it names no codec")
    if header.get("format") != FORMAT:
        raise DeltaInvalid(
            "form",
            f"{reader.path.name} has delta format {header.get('format')!r}, known here is {FORMAT}",
        )
    codec = str(header["codec"])
    if codec not in CODECS:
        known = ", ".join(CODECS)
        raise DeltaInvalid("form", f"{reader.path.name} has codec {codec!r}, known are {known}")
    return codec


def _names(reader: Reader, method: Codec) -> list[str]:
    """Names of the tensors, sorted, once every part of each is there in its dtype."""
    names: dict[str, set[str]] = {}
    for stored in reader.names:
        part, _, name = stored.partition("/")
        dtype = reader.dtype(stored)
        if method.parts.get(part) != dtype:
            raise DeltaInvalid(
                "form", f"{reader.path.name} has {stored!r} of {dtype}, which is no part of a delta"
            )
        names.setdefault(name, set()).add(part)
    for name, parts in names.items():
        if lacking := set(method.parts) - parts:
            raise DeltaInvalid("form", f"{reader.path.name} lacks {min(lacking)} of {name!r}")
    return sorted(names)


def _unpack(reader: Reader, method: Codec, name: str) -> Tensor:
    try:
        return method.unpack({part: reader.tensor(f"{part}/{name}") for part in method.parts})
    except ValueError as error:
        raise DeltaInvalid("form", f"{reader.path.name} has a bad {name!r}: {error}") from error


def _compare_names(path: Path, names: list[str], expected: list[str]) -> None:
    if lacking := sorted(set(expected) - set(names)):
        raise DeltaInvalid(
            "form", f"{path.name} lacks {len(lacking)} of the model's tensors, first {lacking[0]!r}"
        )
    if foreign := sorted(set(names) - set(expected)):
        raise DeltaInvalid(
            "form", f"{path.name} has {len(foreign)} foreign tensors, first {foreign[0]!r}"
        )
