"""Files of tensors: safetensors whose bytes depend on nothing but their content.

The bytes are those that the safetensors library would write, but they are written tensor by tensor,
or piece by piece, so that no more than a piece need be in memory. The library orders metadata keys
differently from run to run, so a file here has either no metadata or the single key `atoll`, whose
value is JSON with sorted keys: its header.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from eventlog.errors import AtollError
from outer.dtypes import NAMES, NUMBERS, Row, of_name, row_of

KEY = "atoll"
Header = Mapping[str, Any]  # what JSON can say

_open: Any = safe_open  # its type stub has no annotations


class TensorFileInvalid(AtollError):
    """The file is torn or is no safetensors file; the text says which file and how."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the head of a file says of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """What its values take."""
        return math.prod(self.shape) * self.dtype.itemsize


class Writer:
    """Writes one file: `put` each tensor of `entries`, whole or in pieces, in any order.

    A context manager: `path` appears where it ends well, with every byte written, and otherwise
    nothing does. Equal entries, values and headers give equal bytes. `durable`: the file survives a
    power cut once the context has ended. `over`: a file that is of no use any more, whose blocks
    are written over instead of new ones (which cost the system more than the copy). Raises OSError.
    """

    def __init__(
        self,
        path: Path,
        entries: Mapping[str, Entry],
        header: Header | None,
        *,
        durable: bool = False,
        over: Path | None = None,
    ) -> None:
        self._path, self._durable, self._entries = path, durable, dict(entries)
        self._over = over
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._head, self._starts = _layout(self._entries, header)
        self._lacking = {name: one.num_bytes for name, one in self._entries.items()}
        self.num_bytes = len(self._head) + data_bytes(self._entries)  # of the file
        self._counting = threading.Lock()
        self._file = -1

    def __enter__(self) -> Self:
        if self._over is not None:
            self._over.replace(self._part)
        self._file = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.ftruncate(self._file, self.num_bytes)
            _write_at(self._file, memoryview(self._head), 0)
        except BaseException:
            self._discard()
            raise
        return self

    def put(self, name: str, tensor: torch.Tensor, start: int = 0) -> None:
        """Write values of a tensor from its element `start` on (flat, row-major). Each element is
        written once; the tensor is contiguous, on the CPU. Any thread may."""
        dtype = self._entries[name].dtype
        if tensor.dtype is not dtype:
            raise ValueError(f"{name!r} is {dtype}: {tensor.dtype} does not fit")
        self.put_row(name, row_of(tensor), start)

    def put_row(self, name: str, row: Row, start: int = 0) -> None:
        """`put` for a row of numpy's, contiguous, whose numbers have the dtype's size."""
        size = row.dtype.itemsize
        offset, entry = start * size, self._entries[name]
        if size != entry.dtype.itemsize or offset + row.nbytes > entry.num_bytes:
            raise ValueError(f"{name!r} is {entry}; {row.dtype} does not fit at {start}")
        if row.size:
            data = row.view(np.uint8).data
            _write_at(self._file, data, len(self._head) + self._starts[name] + offset)
        with self._counting:
            self._lacking[name] -= row.nbytes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:
                return
            if lacking := {name: num for name, num in self._lacking.items() if num}:
                raise ValueError(f"{self._path.name} lacks bytes of its tensors: {lacking}")
            if self._durable:
                os.fsync(self._file)
            self._part.replace(self._path)
        finally:
            self._discard()
        if self._durable:
            _sync(self._path.parent)

    def _discard(self) -> None:
        os.close(self._file)
        self._part.unlink(missing_ok=True)


def write(
    tensors: Mapping[str, torch.Tensor], path: Path, header: Header | None, *, durable: bool = False
) -> None:
    """Write tensors that are all at hand (see `Writer`): any of the known dtypes, contiguous, on
    the CPU. Raises OSError."""
    entries = {name: Entry(one.dtype, tuple(one.shape)) for name, one in tensors.items()}
    with Writer(path, entries, header, durable=durable) as file:
        for name, tensor in tensors.items():
            file.put(name, tensor)


class Reader:
    """An open tensor file. `names` are sorted; `header` is None where the file has none of ours.

    Values are read, not mapped, so that a reader's memory is what it hands out. Any thread may.
    """

    def __init__(self, path: Path, file: Any, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.names: list[str] = sorted(file.keys())
        self.header = _header(file.metadata())
        size = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        self._head: dict[str, Any] = json.loads(os.pread(descriptor, size, 8))  # it was checked
        self._begin = 8 + size

    def dtype(self, name: str) -> str:
        """The stored dtype in safetensors' words: "F32", "BF16", ..."""
        return str(self._head[name]["dtype"])

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape, read from the file's head alone."""
        return tuple(self._head[name]["shape"])

    def tensor(self, name: str) -> torch.Tensor:
        """The stored tensor, in memory of its own."""
        out = torch.empty(self.shape(name), dtype=self._dtype(name))
        self._read(name, 0, row_of(out))
        return out

    def row(self, name: str, start: int, num: int) -> Row:
        """`num` values of a stored tensor from its element `start` on (flat, row-major), in memory
        of their own; bf16 as its bits. Raises ValueError where the tensor ends before."""
        out = np.empty(num, NUMBERS[self._dtype(name)])
        self._read(name, start, out)
        return out

    def _dtype(self, name: str) -> torch.dtype:
        stored = self.dtype(name)
        if (dtype := of_name(stored)) is None:
            what = f"has {name!r} of {stored}, which is unknown here"
            raise TensorFileInvalid(f"{self.path.name} {what}")
        return dtype

    def _read(self, name: str, start: int, out: Row) -> None:
        begin, end = self._head[name]["data_offsets"]
        offset = self._begin + begin + start * out.itemsize
        if offset + out.nbytes > self._begin + end:
            raise ValueError(f"{name!r} ends before element {start + len(out)}")
        data = out.view(np.uint8).data if out.size else memoryview(b"")
        while data:
            done = os.preadv(self._descriptor, [data], offset)
            if not done:
                raise TensorFileInvalid(f"{self.path.name} is torn: it ends within {name!r}")
            data, offset = data[done:], offset + done


@contextmanager
def reading(path: Path, max_head_bytes: int | None = None) -> Iterator[Reader]:
    """Open a tensor file, whose length is that which its head says. Raises TensorFileInvalid where
    it is torn or something else, its head longer than `max_head_bytes` included, and OSError where
    there is no file."""
    if max_head_bytes is not None and (found := _head_bytes(path)) > max_head_bytes:
        what = f"says that its head has {found} bytes, at most {max_head_bytes} are read"
        raise TensorFileInvalid(f"{path.name} is torn or no tensor file of this form: it {what}")
    try:
        with _open(path, framework="pt") as file:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                yield Reader(path, file, descriptor)
            finally:
                os.close(descriptor)
    except SafetensorError as error:
        what = _printable(str(error))
        raise TensorFileInvalid(f"{path.name} is torn or no safetensors file: {what}") from error


def _head_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def _printable(text: str) -> str:
    """The library quotes the file as it is, and terminals obey what they are shown."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def data_bytes(entries: Mapping[str, Entry]) -> int:
    """What the values of a file of these entries take, behind its head."""
    return sum(one.num_bytes for one in entries.values())


def _layout(entries: Mapping[str, Entry], header: Header | None) -> tuple[bytes, dict[str, int]]:
    """The file's head, and where each tensor starts behind it."""
    head: dict[str, Any] = {}
    if header is not None:
        head["__metadata__"] = {KEY: json.dumps(dict(header), sort_keys=True)}
    starts, end = {}, 0
    ranks = {dtype: rank for rank, dtype in enumerate(NAMES)}
    for name in sorted(entries, key=lambda name: (-ranks[entries[name].dtype], name)):
        one = entries[name]
        starts[name], end = end, end + one.num_bytes
        head[name] = {
            "dtype": NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [starts[name], end],
        }
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts


def _write_at(file: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def _header(metadata: Mapping[str, str] | None) -> dict[str, Any] | None:
    try:
        header = json.loads((metadata or {})[KEY])
    except (KeyError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
