"""Token files: little-endian unsigned integers, nothing else, read through a memory map."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sitehub.sources import DataInvalid

Tokens = npt.NDArray[np.unsignedinteger[Any]]
DType = Literal["uint16", "uint32"]
DTYPES: dict[str, np.dtype[np.unsignedinteger[Any]]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
_CHUNK_BYTES = 1 << 20


def dtype_for(vocab_size: int) -> DType:
    """The name of the smallest type that holds every token id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class TokenWriter:
    """Writes a token file; it appears under its name whole, or not at all."""

    def __init__(self, path: Path, dtype: DType) -> None:
        self.path, self.num_tokens = path, 0
        self._part = path.with_name(path.name + ".part")
        self._dtype, self._hash = DTYPES[dtype], hashlib.sha256()
        self._file = self._part.open("wb")

    def append(self, tokens: list[int]) -> None:
        data = np.asarray(tokens, dtype=self._dtype).tobytes()
        self._file.write(data)
        self._hash.update(data)
        self.num_tokens += len(tokens)

    def digest(self) -> str:
        """sha256 (hex) of what was written."""
        return self._hash.hexdigest()

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if error is None:
            os.replace(self._part, self.path)
        else:
            self._part.unlink()


def open_tokens(path: Path, dtype: DType) -> Tokens:
    """The tokens of a file, mapped; pages are read as they are touched. Writing to the array
    changes private pages, never the file. Raises DataInvalid."""
    try:
        return np.memmap(path, dtype=DTYPES[dtype], mode="c")
    except (OSError, ValueError) as error:
        raise DataInvalid(f"{path}: cannot be mapped: {error}") from error


def digest_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes. Raises OSError."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            whole.update(chunk)
    return whole.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Replace a file by `data`, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
