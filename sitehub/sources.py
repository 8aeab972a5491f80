"""Local sources of text: folders and single files, and the running Python's standard library.

A source is an ordered list of documents. Their order depends on paths below the folder alone, so
two machines that hold the same files see the same documents in the same order. A file's name says
what it is (`rowfiles.kind_of`): JSON Lines, parquet and arrow hold a document a row, any other file
is one document. Empty files are no documents, nor is anything hidden (a name that begins with a
dot).
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sitehub.documents import DataInvalid
from sitehub.rowfiles import (
    File,
    Lines,
    RecordBatches,
    RowGroups,
    Texts,
    Unit,
    arrow_batches,
    is_compressed,
    kind_of,
    parquet_file,
    told,
)

__all__ = ["DataInvalid", "Files", "Source", "file", "folder", "standard_library"]

_MAX_FILES = 4096  # of text in a unit
# Tests and idlelib's are not source that anybody reads; packages belong to the machine.
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)
# Written when Python is built or by a distribution: they hold paths and flags of one machine.
_MACHINE_FILES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")


class Source(Protocol):
    """What `build` takes. `label` goes into the manifest and names nothing of a machine; `place`
    is the file or folder it lies in, if it lies on this machine."""

    @property
    def label(self) -> dict[str, Any]: ...

    @property
    def place(self) -> Path | None: ...

    def num_bytes(self) -> int:
        """Its size on disk, 0 if unknown. Raises DataInvalid."""
        ...

    def units(self, source: int, unit_bytes: int) -> Iterator[Unit]:
        """It in parts of about that size, in order. Raises DataInvalid."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """The files below a folder, or one file. `text_field` of a row is its document."""

    place: Path
    suffixes: tuple[str, ...] = ()  # () takes every file
    skipped_folders: frozenset[str] = frozenset()
    skipped_prefixes: tuple[str, ...] = ()
    label: dict[str, Any] = field(default_factory=dict)
    text_field: str = "text"

    def files(self) -> list[tuple[str, Path]]:
        """(posix path below the folder, file) of every file, sorted by the path's bytes. Raises
        DataInvalid."""
        if self.place.is_file():
            return [(self.place.name, self.place)]
        if not self.place.is_dir():
            raise DataInvalid(f"{self.place}: no such file or folder of text; give one that exists")
        found = list(self._walk())
        return sorted(found, key=lambda pair: os.fsencode(pair[0]))

    def num_bytes(self) -> int:
        """The bytes of all files, as they lie there."""
        return sum(File.at(path).num_bytes for _, path in self.files())

    def units(self, source: int, unit_bytes: int) -> Iterator[Unit]:
        """Consecutive files of text together, files of rows in parts, as far as they can be cut."""
        texts: list[File] = []
        size = 0  # of `texts`
        for name, path in self.files():
            found, kind = File.at(path), kind_of(name)
            full = len(texts) == _MAX_FILES or size >= unit_bytes
            if texts and (full or kind != "text"):
                yield Texts(source, tuple(texts))
                texts, size = [], 0
            if kind == "text":
                texts.append(found)
                size += found.num_bytes
            elif kind == "lines":
                yield from _lines(source, found, self.text_field, unit_bytes)
            else:
                yield from _table(source, found, self.text_field, unit_bytes, kind)
        if texts:
            yield Texts(source, tuple(texts))

    def _walk(self) -> Iterator[tuple[str, Path]]:
        for parent, folders, names in os.walk(self.place):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and name not in self.skipped_folders
            ]
            for name in names:
                file = Path(parent, name)
                if self._wanted(name) and file.is_file() and file.stat().st_size:
                    yield file.relative_to(self.place).as_posix(), file

    def _wanted(self, name: str) -> bool:
        return (
            not name.startswith(".")
            and (not self.suffixes or name.endswith(self.suffixes))
            and not name.startswith(self.skipped_prefixes or ("\0",))
        )


def folder(path: Path, suffixes: Sequence[str] = (), text_field: str = "text") -> Files:
    """All files below a folder, or those with one of the suffixes (such as ".txt")."""
    wanted = tuple(sorted(suffixes))
    label = {"kind": "folder", "suffixes": list(wanted), "field": text_field}
    return Files(path, wanted, label=label, text_field=text_field)


def file(path: Path, text_field: str = "text", label: dict[str, Any] | None = None) -> Files:
    """One file of documents. `label`: more to tell of it in the manifest, such as a version."""
    told_of = {"kind": "file", "name": path.name, "field": text_field}
    return Files(path, label=told_of | (label or {}), text_field=text_field)


def standard_library() -> Files:
    """The *.py files of the running Python's standard library without its tests, about 12 MB."""
    return Files(
        Path(sysconfig.get_path("stdlib")),
        (".py",),
        _SKIPPED_FOLDERS,
        _MACHINE_FILES,
        {"kind": "standard library", "python": platform.python_version()},
    )


def _lines(source: int, found: File, name: str, unit_bytes: int) -> Iterator[Unit]:
    if is_compressed(found.path):
        yield Lines(source, found, name)
        return
    for first in range(0, found.num_bytes, unit_bytes):
        yield Lines(source, found, name, first, min(first + unit_bytes, found.num_bytes))


def _table(source: int, found: File, name: str, unit_bytes: int, kind: str) -> Iterator[Unit]:
    """Consecutive row groups or record batches of about a unit's size."""
    make = RowGroups if kind == "parquet" else RecordBatches
    sizes = _group_sizes(found.path, name) if kind == "parquet" else _batch_sizes(found.path, name)
    first, size = 0, 0
    for number, more in enumerate(sizes):
        if size >= unit_bytes:
            yield make(source, found, name, first, number, size)
            first, size = number, 0
        size += more
    if first < len(sizes):
        yield make(source, found, name, first, len(sizes), size)


def _group_sizes(path: str, name: str) -> list[int]:
    with told(path):
        table = parquet_file(path)
        _check_column(path, name, table.schema_arrow.names)
        meta = table.metadata
        return [_column_bytes(meta.row_group(group), name) for group in range(meta.num_row_groups)]


def _column_bytes(group: Any, name: str) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(one.total_compressed_size for one in columns if one.path_in_schema == name)


def _batch_sizes(path: str, name: str) -> list[int]:
    sizes = []
    with told(path), arrow_batches(path) as batches:
        for batch in batches:
            _check_column(path, name, batch.schema.names)
            sizes.append(int(batch.column(name).nbytes))
    return sizes


def _check_column(path: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise DataInvalid(
            f"{path}: has no column {name!r} but {', '.join(map(repr, names))}: name the one that "
            "holds the text (--field)"
        )
