"""Part files into token files of a bounded size, in the order of the units.

A token file is recorded as soon as it is whole on disk, and a part is removed as soon as every
token of it is in such a file: a join that is killed goes on with the file it was at, and needs
room for one token file beside the parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sitehub.documents import DataInvalid
from sitehub.manifest import TokenFile
from sitehub.packing import SPLITS, Packed, part_file
from sitehub.tokenfiles import CHUNK_BYTES, DTYPES, DType, FileWriter

Record = Callable[[int, TokenFile], None]  # split, file: it is whole


def join(
    directory: Path,
    folder: Path,
    packed: Sequence[Packed],
    split: int,
    dtype: DType,
    file_bytes: int,
    done: Sequence[TokenFile],
    record: Record,
) -> tuple[TokenFile, ...]:
    """All token files of a split; those in `done` are whole already. Raises DataInvalid."""
    itemsize = DTYPES[dtype].itemsize
    most = file_bytes // itemsize
    total = sum(one.parts[split].num_tokens for one in packed)
    files, start = list(done), sum(file.num_tokens for file in done)
    parts = _Parts(folder, packed, split, itemsize)
    parts.remove_before(start * itemsize)
    while start < total:
        name = f"{SPLITS[split]}-{len(files):05}.bin"
        end = min(start + most, total)
        with FileWriter(directory / name) as writer:
            for chunk in parts.read(start * itemsize, end * itemsize):
                writer.write(chunk)
        files.append(TokenFile(name=name, num_tokens=end - start, digest=writer.digest()))
        record(split, files[-1])
        parts.remove_before(end * itemsize)
        start = end
    return tuple(files)


class _Parts:
    """The part files of a split as one run of bytes, each held against its digest as it is read."""

    def __init__(self, folder: Path, packed: Sequence[Packed], split: int, itemsize: int) -> None:
        self._parts: list[tuple[int, int, Path, str]] = []
        place = 0
        for one in packed:
            part = one.parts[split]
            end = place + part.num_tokens * itemsize
            self._parts.append((place, end, part_file(folder, one.unit, split), part.digest))
            place = end

    def read(self, start: int, end: int) -> Iterator[bytes]:
        for first, last, path, digest in self._parts:
            if first < end and last > start:
                yield from self._checked(path, digest, start - first, end - first)

    def remove_before(self, place: int) -> None:
        """Remove the parts that end there or before it."""
        while self._parts and self._parts[0][1] <= place:
            self._parts.pop(0)[2].unlink(missing_ok=True)

    def _checked(self, path: Path, digest: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes from start to end; all of the file is read and digested."""
        whole, place = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    whole.update(chunk)
                    if place < end and place + len(chunk) > start:
                        yield chunk[max(0, start - place) : end - place]
                    place += len(chunk)
        except OSError as error:
            raise DataInvalid(f"{path}: cannot be read: {error.strerror}") from error
        if whole.hexdigest() != digest:
            raise DataInvalid(
                f"{path}: is not what was packed, the disk has changed it: remove {path.parent} "
                "and build the data again"
            )
