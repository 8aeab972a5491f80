"""Deltas and merged updates as files that say themselves how they were encoded.

The file's header names format, codec and the codec's parameters; each part that the codec makes of
a tensor is stored as `part/name`. Where the parts are not in the tensor's shape, the header says
the shape. Reading gives canonical fp32: bits that depend on the file's bytes alone.

`Writer` and `Opened` go tensor by tensor: the whole of a model is never in memory for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from eventlog.errors import AtollError
from outer import deltahead, packing, tensorfile
from outer.deltahead import FORMAT, DeltaInvalid, Shapes
from outer.norms import Norms, NormsMeter, measure
from outer.packing import CODECS, Row
from outer.pieces import over_pieces, over_tensors
from outer.tensorfile import TensorFileInvalid
from outer.values import OutOfRange

__all__ = [
    "CODECS",
    "FORMAT",
    "DeltaInvalid",
    "NonFinite",
    "Norms",
    "Opened",
    "Writer",
    "codec_of",
    "decode",
    "encode",
    "measure",
    "validate_delta",
]


class NonFinite(AtollError):
    """A tensor holds NaN, an infinity, or a value that its codec cannot hold."""

    def __init__(self, tensor: str, why: str) -> None:
        super().__init__(f"tensor {tensor!r} {why}; nothing was written")
        self.tensor = tensor


class Writer:
    """Writes one file under a codec of `CODECS`, tensor by tensor, in any order.

    A context manager: `path` appears where it ends well, with every tensor of `shapes` added, and
    otherwise nothing does. Equal values give equal bytes. `durable`: the file survives a power cut
    once the context has ended. In memory are, besides what `add` gives and takes, the parts of one
    piece. Raises OSError.
    """

    def __init__(self, path: Path, codec: str, shapes: Shapes, *, durable: bool = False) -> None:
        self._name, self._codec = codec, CODECS[codec]
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        header, entries = deltahead.head(codec, self._shapes)
        self._file = tensorfile.Writer(path, entries, header, durable=durable)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    @property
    def num_bytes(self) -> int:
        """Of the file, known before anything is added."""
        return self._file.num_bytes

    def add(self, name: str, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """Pack and write one fp32 tensor, of any device; what a reader will decode, on the CPU.

        That goes to `out` where it is given (contiguous, fp32; it may be `tensor` itself), else to
        new memory. Raises NonFinite for NaN, infinity and what the codec cannot hold.
        """
        if tensor.dtype is not torch.float32:
            raise TypeError(f"tensor {name!r} is {tensor.dtype}, a delta is torch.float32")
        if tuple(tensor.shape) != self._shapes[name]:
            raise ValueError(f"{name!r} is {list(tensor.shape)}, not {list(self._shapes[name])}")
        decoded = torch.empty(tensor.shape) if out is None else out
        if decoded.dtype is not torch.float32 or decoded.numel() != tensor.numel():
            raise TypeError(f"{name!r} cannot be decoded into {decoded.dtype} {[*decoded.shape]}")
        source, target = tensor.detach().reshape(-1), decoded.view(-1).numpy()

        def work(piece: slice) -> None:
            self.add_piece(name, piece.start, source[piece], target[piece])

        over_pieces(source.numel(), work, source.device)
        return decoded

    def add_piece(self, name: str, start: int, values: Tensor, out: Row) -> None:
        """`add` for flat values of a tensor from its element `start` on: multiples of GRAIN, and
        the rest. By any thread; each element once."""
        try:
            parts = packing.pack_piece(self._codec, values)
            for part, begin in self._codec.lengths(start).items():
                self._file.put_row(f"{part}/{name}", parts[part], begin)
            self._codec.unpack(parts, out)
        except OutOfRange as error:
            if not math.isfinite(error.peak):
                raise NonFinite(name, "holds NaN or infinity") from error
            why = f"holds {error.peak:g}, which {self._name} cannot hold"
            raise NonFinite(name, why) from error


class Opened(AbstractContextManager["Opened"]):
    """A file opened for reading any of its tensors by name. A context manager.

    What the file's head says is checked at once: codec, parts, shapes, and that the file is as long
    as it must be; with `reference` (any mapping of names to what has a `shape`), that names and
    shapes are the same. Raises DeltaInvalid ("blob" or "form"), and OSError where there is no file.
    """

    def __init__(self, path: Path, reference: Mapping[str, Any] | None = None) -> None:
        self.path = path
        with ExitStack() as stack:
            try:
                most = None if reference is None else deltahead.max_bytes(reference)
                self._reader = stack.enter_context(tensorfile.reading(path, most))
            except TensorFileInvalid as error:
                raise DeltaInvalid("blob", str(error)) from error
            self.codec = deltahead.codec_of(self._reader)
            self._codec = CODECS[self.codec]
            self.shapes = deltahead.shapes_of(self._reader, self._codec)
            if reference is not None:
                deltahead.compare(path, self.shapes, reference)
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """Of the tensors, sorted."""
        return list(self.shapes)

    def tensor(self, name: str, out: Tensor | None = None) -> Tensor:
        """The canonical fp32 tensor (CPU), written to `out` where that is given (contiguous), else
        in memory of its own. Raises DeltaInvalid ("form", "blob"). NaN passes."""
        target = torch.empty(self.shapes[name]) if out is None else out
        row = target.view(-1).numpy()
        over_pieces(row.size, lambda piece: self.piece(name, piece.start, row[piece]))
        return target

    def piece(self, name: str, start: int, out: Row) -> None:
        """Write to `out` the flat values of a tensor from its element `start` on: multiples of
        GRAIN, and the rest. By any thread. Raises DeltaInvalid ("form", "blob")."""
        begins, lengths = self._codec.lengths(start), self._codec.lengths(out.size)
        try:
            parts = {
                part: self._reader.row(f"{part}/{name}", begins[part], lengths[part])
                for part in self._codec.parts
            }
            self._codec.unpack(parts, out)
        except TensorFileInvalid as error:
            raise DeltaInvalid("blob", str(error)) from error
        except ValueError as error:
            raise DeltaInvalid("form", f"{self.path.name} has a bad {name!r}: {error}") from error


def encode(tensors: Mapping[str, Tensor], codec: str, path: Path) -> None:
    """Write fp32 tensors that are all at hand (see `Writer`).

    Raises NonFinite, naming the first tensor (sorted) with NaN, infinity or a value that the codec
    cannot hold; then nothing is written.
    """
    with Writer(path, codec, {name: tensor.shape for name, tensor in tensors.items()}) as file:
        for name in sorted(tensors):
            file.add(name, tensors[name])


def codec_of(path: Path) -> str:
    """The codec that a file names. Raises DeltaInvalid ("blob" or "form")."""
    with Opened(path) as file:
        return file.codec


def decode(path: Path) -> dict[str, Tensor]:
    """All tensors of a file by name, in order. Raises DeltaInvalid ("blob" or "form"). Values are
    not looked at: NaN passes."""
    with Opened(path) as file:
        return {name: file.tensor(name) for name in file.names}


def validate_delta(path: Path, reference: Mapping[str, Any], codec: str) -> Norms:
    """The norms of a delta that can be merged: whole, of the claimed codec, with the names and
    shapes of `reference`, all finite. Raises DeltaInvalid, whose `code` says which does not hold.
    """
    meter = NormsMeter()
    with Opened(path, reference) as file:
        if file.codec != codec:
            what = f"{path.name} is encoded as {file.codec}, it was said to be {codec}"
            raise DeltaInvalid("form", what)
        sizes = ((name, math.prod(shape)) for name, shape in file.shapes.items())
        for name, good in over_tensors(sizes, partial(_measure_piece, file, meter)):
            if not all(good):
                raise DeltaInvalid("nonfinite", f"{path.name} has NaN or infinity in {name!r}")
    return meter.norms()


def _measure_piece(file: Opened, meter: NormsMeter, name: str, piece: slice) -> bool:
    values = np.empty(piece.stop - piece.start, np.float32)
    file.piece(name, piece.start, values)
    return meter.add_row(values)
