"""Units of work over local files: parts of texts, JSON Lines, parquet and arrow files.

A unit is a value that another process can be sent: it names files and a range of them, and
`values` reads what stands there, in order, with memory that does not grow with the file. How files
are cut depends on their sizes alone, never on who works on them.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from sitehub.documents import MAX_CHARACTERS, MAX_LINE_BYTES, DataInvalid, Tally, decoded

_COMPRESSED = (".gz", ".zst")
_LINES = (".jsonl", ".ndjson", ".json")
_BATCH_ROWS = 256  # of a table, read together


class Unit(Protocol):
    """A part of a source. Its `repr` tells it from every other, changed files included."""

    @property
    def source(self) -> int: ...

    @property
    def weight(self) -> int:
        """Its share of the work: bytes of the source, or 1 for a shard of unknown size."""
        ...

    def values(self, tally: Tally) -> Iterator[Any]:
        """What stands there: bytes, text, None, or something else, which is no document.
        Raises DataInvalid."""
        ...


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found; a changed one is another."""

    path: str
    num_bytes: int
    changed_ns: int

    @classmethod
    def at(cls, path: Path) -> File:
        """Raises DataInvalid."""
        with told(str(path)):
            found = path.stat()
        return cls(str(path), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Texts:
    """Whole files, each a document."""

    source: int
    files: tuple[File, ...]

    @property
    def weight(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def values(self, tally: Tally) -> Iterator[Any]:
        for file in self.files:
            with told(file.path), opened(file.path) as stream:
                first = stream.read(MAX_CHARACTERS)
                yield from _pieces(first, stream, tally)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a JSON Lines file that begin at `first_byte` or behind it and before
    `end_byte`; of a compressed file, which is read from its beginning, all."""

    source: int
    file: File
    field: str
    first_byte: int = 0
    end_byte: int | None = None

    @property
    def weight(self) -> int:
        return (self.file.num_bytes if self.end_byte is None else self.end_byte) - self.first_byte

    def values(self, tally: Tally) -> Iterator[Any]:
        with told(self.file.path), opened(self.file.path) as stream:
            place = self.first_byte
            if place:
                stream.seek(place - 1)
                place += _skip_line(stream) - 1
            while self.end_byte is None or place < self.end_byte:
                line = stream.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                place += len(line)
                if len(line) > MAX_LINE_BYTES:
                    place += 0 if line.endswith(b"\n") else _skip_line(stream)
                    tally["too_long"] += 1
                elif not line.isspace():
                    yield from _field(line, self.field, tally)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of a parquet file."""

    source: int
    file: File
    field: str
    first: int
    end: int
    weight: int

    def values(self, tally: Tally) -> Iterator[Any]:
        with told(self.file.path):
            table = parquet_file(self.file.path)
            for batch in table.iter_batches(
                _BATCH_ROWS, row_groups=range(self.first, self.end), columns=[self.field]
            ):
                yield from column_values(batch.column(0), tally)


@dataclass(frozen=True, slots=True)
class RecordBatches:
    """Record batches of an arrow file, of either of its two formats."""

    source: int
    file: File
    field: str
    first: int
    end: int
    weight: int

    def values(self, tally: Tally) -> Iterator[Any]:
        with told(self.file.path), arrow_batches(self.file.path) as batches:
            for number, batch in enumerate(batches):
                if number >= self.end:
                    return
                if number >= self.first:
                    for start in range(0, batch.num_rows, _BATCH_ROWS):
                        rows = batch.slice(start, _BATCH_ROWS)
                        yield from column_values(rows.column(self.field), tally)


def kind_of(name: str) -> str:
    """ "lines", "parquet", "arrow" or "text", by a file's name. `.json` means JSON Lines, as it
    does on the Hugging Face hub."""
    plain = name.removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(_LINES):
        return "lines"
    if name.endswith((".parquet", ".arrow")):
        return name.rpartition(".")[2]
    return "text"


def is_compressed(path: str) -> bool:
    """Whether a file is read through a decompressor, which can begin at its beginning only."""
    return path.endswith(_COMPRESSED)


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """A file's bytes, decompressed by its name. Raises DataInvalid without zstandard."""
    if path.endswith(".gz"):
        with gzip.open(path) as unpacked:
            yield cast(IO[bytes], unpacked)
    elif path.endswith(".zst"):
        unpacker = needed("zstandard", path).ZstdDecompressor()
        with open(path, "rb") as raw:
            yield io.BufferedReader(unpacker.stream_reader(raw, read_across_frames=True))
    else:
        with open(path, "rb") as stream:
            yield stream


def needed(module: str, path: str) -> Any:
    """A module of the extra `data`. Raises DataInvalid where it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataInvalid(
            f"{path}: reading it needs {error.name}, which is not installed: install atoll[data]"
        ) from error


@contextmanager
def told(path: str) -> Iterator[None]:
    """What goes wrong with a file, in one line with its name. Raises DataInvalid."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataInvalid(f"{path}: cannot be read: {why}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyarrow", "zstd", "zstandard"):
            raise
        why = str(error).partition("\n")[0]
        raise DataInvalid(f"{path}: is damaged, it cannot be read: {why}") from error


def parquet_file(path: str) -> Any:
    """A parquet file, opened. It is read, not mapped: mapped pages would count as our memory."""
    return needed("pyarrow.parquet", path).ParquetFile(path, pre_buffer=False)


@contextmanager
def arrow_batches(path: str) -> Iterator[Iterator[Any]]:
    """The record batches of an arrow file: of the file format, or of the stream format that
    `datasets` writes."""
    pyarrow = needed("pyarrow", path)
    ipc = needed("pyarrow.ipc", path)
    with pyarrow.memory_map(path) as source:
        try:
            reader = ipc.open_file(source)
        except pyarrow.ArrowInvalid:
            source.seek(0)
            yield iter(ipc.open_stream(source))
        else:
            yield (reader.get_batch(number) for number in range(reader.num_record_batches))


def column_values(column: Any, tally: Tally) -> Iterator[Any]:
    """The values of a column of a table; text that is no UTF-8 as its bytes."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_string(kind):
        column = column.cast(pyarrow.binary())
    elif pyarrow.types.is_large_string(kind):
        column = column.cast(pyarrow.large_binary())
    yield from column.to_pylist()


def _pieces(first: bytes, stream: IO[bytes], tally: Tally) -> Iterator[bytes]:
    """A file in pieces that end with a character: one, unless it is longer than a document."""
    rest = stream.read(1)
    if rest:
        tally["cut"] += 1
    while first:
        whole = first + rest
        cut = _character_end(whole) if rest else len(whole)
        yield whole[:cut]
        first = whole[cut:]
        if rest:
            first += stream.read(MAX_CHARACTERS - len(first))
            rest = stream.read(1)


def _character_end(data: bytes) -> int:
    """Where the last character begins that may go on behind the end (UTF-8: at most 3 bytes on)."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back
    return len(data)


def _skip_line(stream: IO[bytes]) -> int:
    """The bytes up to the next line's first, skipped a piece at a time."""
    skipped = 0
    while piece := stream.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _field(line: bytes, field: str, tally: Tally) -> Iterator[Any]:
    text = decoded(line, tally).removeprefix("\ufeff")
    try:
        row = json.loads(text, strict=False)  # raw NULs and tabs within a text are its own
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict):
        yield row.get(field)
    else:
        tally["damaged"] += 1
