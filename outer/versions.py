"""What a version of the model is: parameters θ, momentum m, residual e; its digests and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eventlog.errors import AtollError
from outer import tensorfile
from outer.digests import TensorsDigest, digest
from outer.tensorfile import Entry, Header, Reader, TensorFileInvalid

FORMAT = 1
__all__ = [
    "Digests",
    "OuterState",
    "SnapshotInvalid",
    "digest",
    "load_parameters",
    "load_snapshot",
    "load_version",
    "save_parameters",
    "save_snapshot",
    "snapshot_digests",
]

_KINDS = ("parameters", "momentum", "residual")


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
            for name in parameters
        }
        return cls.of_own(theta)

    @classmethod
    def of_own(cls, parameters: Mapping[str, Tensor]) -> OuterState:
        """Version 0 of parameters that nobody else uses, fp32 on the CPU: they are not copied."""
        theta = {name: parameters[name] for name in sorted(parameters)}
        return cls(0, theta, _zeros(theta), _zeros(theta))

    def clone(self) -> OuterState:
        """The same state in memory of its own."""
        copies = ({k: t.clone() for k, t in getattr(self, kind).items()} for kind in _KINDS)
        return OuterState(self.version, *copies)

    def digests(self) -> Digests:
        return Digests(digest(self.parameters), digest(self.momentum), digest(self.residual))


def save_parameters(parameters: Mapping[str, Tensor], path: Path) -> None:
    """Write fp32 parameters as plain safetensors without metadata: equal parameters, equal bytes.
    `path` appears whole or not at all."""
    tensorfile.write(parameters, path, None, durable=True)


def load_parameters(path: Path) -> dict[str, Tensor]:
    """Parameters in sorted order. Raises SnapshotInvalid (torn, foreign, not fp32)."""
    with _opened(path) as reader:
        return {name: _tensor(reader, name) for name in reader.names}


def save_snapshot(
    state: OuterState, path: Path, on_written: Callable[[str], None] = lambda _: None
) -> None:
    """Write a version into one file, which appears whole or not at all and survives a power cut.
    Equal states give equal bytes. `on_written(name)` follows when θ, m and e of a tensor are."""
    header: Header = {"format": FORMAT, "kind": "snapshot", "version": state.version}
    parts = {kind: getattr(state, kind) for kind in _KINDS}
    entries = {
        f"{kind}/{name}": Entry(tensor.dtype, tuple(tensor.shape))
        for kind, tensors in parts.items()
        for name, tensor in tensors.items()
    }
    with tensorfile.Writer(path, entries, header, durable=True) as file:
        for name in sorted(state.parameters):
            for kind in _KINDS:
                file.put(f"{kind}/{name}", parts[kind][name])
            on_written(name)


def load_snapshot(path: Path) -> OuterState:
    """The version in a file. Raises SnapshotInvalid where it is torn or something else."""
    with _opened(path) as reader:
        version = _snapshot_version(reader)
        parts = ({n: _tensor(reader, f"{kind}/{n}") for n in _names(reader)} for kind in _KINDS)
        return OuterState(version, *parts)


def load_version(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
    """What a site needs of a snapshot: its version, θ and m. Raises SnapshotInvalid."""
    with _opened(path) as reader:
        version, names = _snapshot_version(reader), _names(reader)
        theta = {name: _tensor(reader, f"parameters/{name}") for name in names}
        return version, theta, {name: _tensor(reader, f"momentum/{name}") for name in names}


def snapshot_digests(path: Path) -> tuple[int, Digests]:
    """The version in a file and its digests, in the memory of one tensor. Raises
    SnapshotInvalid."""
    with _opened(path) as reader:
        version, found = _snapshot_version(reader), []
        for kind in _KINDS:
            whole = TensorsDigest()
            for name in _names(reader):
                whole.add(name, _tensor(reader, f"{kind}/{name}"))
            found.append(whole.hexdigest())
        return version, Digests(*found)


@contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    try:
        with tensorfile.reading(path) as reader:
            yield reader
    except TensorFileInvalid as error:
        raise SnapshotInvalid(str(error)) from error


def _snapshot_version(reader: Reader) -> int:
    """The version that a whole snapshot says it is of."""
    version = _version(reader)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {kind: {} for kind in _KINDS}
    for stored in reader.names:
        kind, _, name = stored.partition("/")
        if kind not in shapes:
            what = f"{reader.path.name} has {stored!r}, which is no part of a version"
            raise SnapshotInvalid(what)
        _check_dtype(reader, stored)
        shapes[kind][name] = reader.shape(stored)
    for kind in _KINDS[1:]:
        if shapes[kind] != shapes["parameters"]:
            what = f"{reader.path.name}: names or shapes of {kind} are not the parameters'"
            raise SnapshotInvalid(what)
    return version


def _names(reader: Reader) -> list[str]:
    """Names of a snapshot's tensors, sorted."""
    begin = "parameters/"
    return [name.removeprefix(begin) for name in reader.names if name.startswith(begin)]


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
    _check_dtype(reader, name)
    return reader.tensor(name)


def _check_dtype(reader: Reader, name: str) -> None:
    if reader.dtype(name) != "F32":
        raise SnapshotInvalid(f"{reader.path.name} has {name!r} of {reader.dtype(name)}, not F32")


def _zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
