"""What a version of the model is: parameters θ, momentum m, residual e; its digests and files."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eventlog.errors import AtollError
from outer import tensorfile
from outer.tensorfile import Header, Reader, TensorFileInvalid

FORMAT = 1
_KINDS = ("parameters", "momentum", "residual")
_INTEGERS: dict[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}


class SnapshotInvalid(AtollError):
    """A file is torn, or not the snapshot or parameters it should be; the text says what."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests (hex) of the three parts of a version, as `RoundCommitted` carries them."""

    parameters: str
    momentum: str
    residual: str


@dataclass(frozen=True, slots=True)
class OuterState:
    """The state of the outer optimizer after `version` steps.

    The three have the same sorted names and shapes, all fp32 on the CPU, each tensor with memory
    of its own. What an outer step does to them is said by `outer.merge.take_step`.
    """

    version: int
    parameters: dict[str, Tensor]
    momentum: dict[str, Tensor]
    residual: dict[str, Tensor]

    @classmethod
    def initial(cls, parameters: Mapping[str, Tensor]) -> OuterState:
        """Version 0: a copy of the parameters, momentum and residual zero."""
        theta = {
            name: parameters[name].detach().to("cpu", torch.float32, copy=True).contiguous()
            for name in sorted(parameters)
        }
        return cls(0, theta, _zeros(theta), _zeros(theta))

    def clone(self) -> OuterState:
        """The same state in memory of its own."""
        copies = ({k: t.clone() for k, t in getattr(self, kind).items()} for kind in _KINDS)
        return OuterState(self.version, *copies)

    def digests(self) -> Digests:
        return Digests(digest(self.parameters), digest(self.momentum), digest(self.residual))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 (hex) over name, dtype, shape and little-endian values, in the order of names.

    Each tensor contributes the length (8 bytes, little-endian) and text of the sorted JSON
    {"dtype", "name", "shape"}, then its values. Equal digests mean equal bits.
    """
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        head = {"dtype": dtype, "name": name, "shape": list(tensor.shape)}
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        whole.update(len(text).to_bytes(8, "little") + text)
        whole.update(_little_endian(tensor))
    return whole.hexdigest()


def save_parameters(parameters: Mapping[str, Tensor], path: Path) -> None:
    """Write fp32 parameters as plain safetensors without metadata: equal parameters, equal bytes.
    `path` appears whole or not at all."""
    tensorfile.write(parameters, path, None, durable=True)


def load_parameters(path: Path) -> dict[str, Tensor]:
    """Parameters in sorted order. Raises SnapshotInvalid (torn, foreign, not fp32)."""
    with _opened(path) as reader:
        return {name: _tensor(reader, name) for name in reader.names}


def save_snapshot(state: OuterState, path: Path) -> None:
    """Write a version into one file, which appears whole or not at all and survives a power cut.
    Equal states give equal bytes."""
    stored = {
        f"{kind}/{name}": tensor for kind in _KINDS for name, tensor in getattr(state, kind).items()
    }
    header: Header = {"format": FORMAT, "kind": "snapshot", "version": state.version}
    tensorfile.write(stored, path, header, durable=True)


def load_snapshot(path: Path) -> OuterState:
    """The version in a file. Raises SnapshotInvalid where it is torn or something else."""
    with _opened(path) as reader:
        version = _version(reader)
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
        for stored in reader.names:
            kind, _, name = stored.partition("/")
            if kind not in parts:
                raise SnapshotInvalid(f"{path.name} has {stored!r}, which is no part of a version")
            parts[kind][name] = _tensor(reader, stored)
    theta = parts["parameters"]
    for kind in _KINDS[1:]:
        if _shapes(parts[kind]) != _shapes(theta):
            raise SnapshotInvalid(f"{path.name}: names or shapes of {kind} are not the parameters'")
    return OuterState(version, theta, parts["momentum"], parts["residual"])


@contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    try:
        with tensorfile.reading(path) as reader:
            yield reader
    except TensorFileInvalid as error:
        raise SnapshotInvalid(str(error)) from error


def _version(reader: Reader) -> int:
    header = reader.header or {}
    version = header.get("version")
    if header.get("kind") != "snapshot" or type(version) is not int or version < 0:
        raise SnapshotInvalid(f"{reader.path.name} is no snapshot")
    if header.get("format") != FORMAT:
        found = header.get("format")
        raise SnapshotInvalid(
            f"{reader.path.name} has snapshot format {found!r}, known here is {FORMAT}"
        )
    return version


def _tensor(reader: Reader, name: str) -> Tensor:
    if reader.dtype(name) != "F32":
        raise SnapshotInvalid(f"{reader.path.name} has {name!r} of {reader.dtype(name)}, not F32")
    return reader.tensor(name)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def _little_endian(tensor: Tensor) -> Any:
    """The values' bytes, without a copy where the machine is little-endian (bool and complex
    tensors have no digest)."""
    bits = tensor.cpu().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()]).numpy()
    return (bits.byteswap() if sys.byteorder == "big" else bits).data
