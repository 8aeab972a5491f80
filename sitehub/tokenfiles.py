"""Token files: little-endian unsigned integers, nothing else, read through memory maps.

The tokens of a split are one stream, cut into files of a bounded size wherever a file is full: in
the middle of a document or of a sequence. `TokenStream` puts them together again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sitehub.documents import DataInvalid

Tokens = npt.NDArray[np.unsignedinteger[Any]]
DType = Literal["uint16", "uint32"]
DTYPES: dict[str, np.dtype[np.unsignedinteger[Any]]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
CHUNK_BYTES = 1 << 20


def dtype_for(vocab_size: int) -> DType:
    """The name of the smallest type that holds every token id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class FileWriter:
    """Writes a file and its digest; it appears under its name whole, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path, self.num_bytes = path, 0
        self._part = path.with_name(f"{path.name}.{os.getpid()}.part")
        self._hash = hashlib.sha256()
        self._file = self._part.open("wb")

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def digest(self) -> str:
        """sha256 (hex) of what was written."""
        return self._hash.hexdigest()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
        if error is None:
            os.replace(self._part, self.path)
        else:
            self._part.unlink(missing_ok=True)


class TokenStream:
    """The tokens of a split, over all its files. Nothing is read before it is asked for."""

    def __init__(self, files: Sequence[Tokens]) -> None:
        self.files = tuple(files)
        self.dtype = self.files[0].dtype
        self._ends = np.cumsum([len(file) for file in self.files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, wanted: slice) -> Tokens:
        """A run of tokens: a view of the map where it lies in one file, else a copy."""
        start, stop, step = wanted.indices(len(self))
        if step != 1:
            raise IndexError(f"tokens are read in runs, not in steps of {step}")
        parts = list(self._parts(start, max(start, stop)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rows(self, starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        """[len(starts), width]: the `width` tokens from each start on, as int64, which embeddings
        and losses take. The one copy between the map and the model."""
        found = np.empty((len(starts), width), np.int64)
        owners = np.searchsorted(self._ends, starts, side="right")
        across = starts + width > self._ends[owners]
        for number in np.unique(owners[~across]):
            file = self.files[number]
            windows = np.lib.stride_tricks.sliding_window_view(file, width)
            here = (owners == number) & ~across
            found[here] = windows[starts[here] - (self._ends[number] - len(file))]
        for row in np.flatnonzero(across):
            found[row] = self[int(starts[row]) : int(starts[row]) + width]
        return found

    def chunks(self) -> Iterator[Tokens]:
        """All tokens in order, in views of at most a few megabytes."""
        for file in self.files:
            for start in range(0, len(file), CHUNK_BYTES):
                yield file[start : start + CHUNK_BYTES]

    def _parts(self, start: int, stop: int) -> Iterator[Tokens]:
        first = min(int(np.searchsorted(self._ends, start, side="right")), len(self.files) - 1)
        for file, end in zip(self.files[first:], self._ends[first:], strict=True):
            begin = int(end) - len(file)
            yield file[start - begin : min(stop, int(end)) - begin]
            start = int(end)
            if start >= stop:
                return


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
        while chunk := file.read(CHUNK_BYTES):
            whole.update(chunk)
    return whole.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Replace a file by `data`, whole or not at all."""
    with FileWriter(path) as file:
        file.write(data)
