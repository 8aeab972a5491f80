"""Where text comes from: folders, and the running Python's standard library.

A document is one file. Its place in the corpus depends on its path below the folder alone, so two
machines that hold the same files see the same documents in the same order. Text is the file's
bytes read as UTF-8, each undecodable byte replaced by U+FFFD; line ends are kept as they are.
Empty files are no documents, nor is anything hidden (a name that begins with a dot).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventlog.errors import AtollError

# Tests and idlelib's are not source that anybody reads; packages belong to the machine.
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)
# Written when Python is built or by a distribution: they hold paths and flags of one machine.
_MACHINE_FILES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")


class DataInvalid(AtollError):
    """A source, a setting or a data directory that cannot be trained on; the text says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Text files below a folder. `label` goes into the manifest and names nothing of a machine."""

    folder: Path
    suffixes: tuple[str, ...] = ()  # () takes every file
    skipped_folders: frozenset[str] = frozenset()
    skipped_prefixes: tuple[str, ...] = ()
    label: dict[str, Any] = field(default_factory=dict)

    def files(self) -> list[tuple[str, Path]]:
        """(posix path below the folder, file) of every document, sorted by the path's bytes."""
        if not self.folder.is_dir():
            raise DataInvalid(f"{self.folder}: no such folder of text; give one that exists")
        found = list(self._walk())
        return sorted(found, key=lambda pair: os.fsencode(pair[0]))

    def _walk(self) -> Iterator[tuple[str, Path]]:
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and name not in self.skipped_folders
            ]
            for name in names:
                file = Path(parent, name)
                if self._wanted(name) and file.is_file() and file.stat().st_size:
                    yield file.relative_to(self.folder).as_posix(), file

    def _wanted(self, name: str) -> bool:
        return (
            not name.startswith(".")
            and (not self.suffixes or name.endswith(self.suffixes))
            and not name.startswith(self.skipped_prefixes or ("\0",))
        )


def folder(path: Path, suffixes: Sequence[str] = ()) -> Source:
    """All files below a folder, or those with one of the suffixes (such as ".txt")."""
    wanted = tuple(sorted(suffixes))
    return Source(path, wanted, label={"kind": "folder", "suffixes": list(wanted)})


def standard_library() -> Source:
    """The *.py files of the running Python's standard library without its tests, about 12 MB."""
    return Source(
        Path(sysconfig.get_path("stdlib")),
        (".py",),
        _SKIPPED_FOLDERS,
        _MACHINE_FILES,
        {"kind": "standard library", "python": platform.python_version()},
    )


@dataclass(frozen=True, slots=True)
class Document:
    """One file of the corpus: where it stands, and on which side of the split it is."""

    source: int  # index of its source
    path: str  # posix path below the source's folder
    file: Path
    heldout: bool

    def read(self) -> bytes:
        """The file's bytes. Raises DataInvalid."""
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise DataInvalid(f"{self.file}: cannot be read: {error.strerror}") from error


def documents(sources: Sequence[Source], subset: int, heldout_every: int) -> list[Document]:
    """The documents of all sources in order: every `subset`-th file of each source is taken, and
    of what is taken every `heldout_every`-th held out (of fewer than that, the last)."""
    taken = [
        (index, path, file)
        for index, source in enumerate(sources)
        for path, file in source.files()[::subset]
    ]
    if len(taken) < 2:
        where = ", ".join(str(source.folder) for source in sources)
        raise DataInvalid(
            f"{where}: {len(taken)} documents; at least two are needed, one of them to hold out"
        )
    every = min(heldout_every, len(taken))
    return [
        Document(index, path, file, heldout=number % every == every - 1)
        for number, (index, path, file) in enumerate(taken)
    ]


def text_of(content: bytes) -> str:
    """A document's text by the rule above: UTF-8, undecodable bytes replaced."""
    return content.decode("utf-8", errors="replace")


class SourceDigest:
    """The digest over the paths and bytes of a source's documents, taken one by one."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"atoll source 1\n")
        self.num_documents = 0
        self.num_bytes = 0

    def add(self, path: str, content: bytes) -> None:
        name = os.fsencode(path)
        self._hash.update(len(name).to_bytes(4, "big") + name)
        self._hash.update(len(content).to_bytes(8, "big") + content)
        self.num_documents += 1
        self.num_bytes += len(content)

    def hex(self) -> str:
        return self._hash.hexdigest()
