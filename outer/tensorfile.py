"""Files of tensors: safetensors whose bytes depend on nothing but their content.

safetensors orders metadata keys differently from run to run, so a file here has either no metadata
or the single key `atoll`, whose value is JSON with sorted keys: its header.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from eventlog.errors import AtollError

KEY = "atoll"
Header = Mapping[str, str | int]

_open: Any = safe_open  # its type stub has no annotations


class TensorFileInvalid(AtollError):
    """The file is torn or is no safetensors file; the text says which file and how."""


def write(
    tensors: Mapping[str, torch.Tensor], path: Path, header: Header | None, *, durable: bool = False
) -> None:
    """Write the tensors, in sorted order, so that `path` appears whole or not at all.

    Equal tensors and headers give equal bytes. `durable`: it survives a power cut once this
    returns. Tensors may be of any dtype, but contiguous, on the CPU and with storage of their own.
    Raises OSError.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    metadata = None if header is None else {KEY: json.dumps(dict(header), sort_keys=True)}
    try:
        _save({name: tensors[name] for name in sorted(tensors)}, part, metadata)
        if durable:
            _sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if durable:
        _sync(path.parent)


def _save(tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:  # what the library makes of a full disk
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


class Reader:
    """An open tensor file. `names` are sorted; `header` is None where the file has none of ours."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self.names: list[str] = sorted(file.keys())
        self.header = _header(file.metadata())

    def dtype(self, name: str) -> str:
        """The stored dtype in safetensors' words: "F32", "BF16", ..."""
        return str(self._file.get_slice(name).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape, read from the file's head alone."""
        return tuple(self._file.get_slice(name).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """The stored tensor, in memory of its own: it outlives the file and may be changed."""
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor.clone()


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """Open a tensor file. Raises TensorFileInvalid where it is torn or something else, and OSError
    where there is no file."""
    try:
        with _open(path, framework="pt") as file:
            yield Reader(path, file)
    except SafetensorError as error:
        raise TensorFileInvalid(f"{path.name} is torn or no safetensors file: {error}") from error


def _header(metadata: Mapping[str, str] | None) -> dict[str, str | int] | None:
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
