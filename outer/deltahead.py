"""The head of a delta's file: what it must say, and what is wrong with it where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eventlog.errors import AtollError
from outer.dtypes import NAMES
from outer.packing import CODECS, Codec
from outer.tensorfile import Entry, Header, Reader, data_bytes

FORMAT = 1
MAX_ELEMENTS = 1 << 48  # of a tensor that a file can speak of
_MAX_DIMENSIONS = 64

InvalidCode = Literal["blob", "form", "nonfinite"]
Shapes = Mapping[str, Sequence[int]]


class DeltaInvalid(AtollError):
    """A file is not the delta it should be.

    code: "blob" torn or no tensor file; "form" another codec, other names, shapes or dtypes, or
    parts that do not fit together; "nonfinite" NaN or infinity among its values.
    """

    def __init__(self, code: InvalidCode, what: str) -> None:
        super().__init__(what)
        self.code = code


def head(codec: str, shapes: Shapes) -> tuple[Header, dict[str, Entry]]:
    """The header of a file and the entries of all parts of its tensors."""
    method = CODECS[codec]
    header: dict[str, Any] = {"codec": codec, "format": FORMAT, **method.parameters}
    if not method.elementwise:
        header["shapes"] = {name: list(shape) for name, shape in shapes.items()}
    entries = {}
    for name, shape in shapes.items():
        for part, length in method.lengths(math.prod(shape)).items():
            stored = tuple(shape) if method.elementwise else (length,)
            entries[f"{part}/{name}"] = Entry(method.parts[part], stored)
    return header, entries


def max_file_bytes(codec: str, reference: Mapping[str, Any]) -> int:
    """Of the file of any delta of this form under a codec of `CODECS`: what its values take is
    known to the byte."""
    _, entries = head(codec, {name: tuple(one.shape) for name, one in reference.items()})
    return 8 + max_bytes(reference) + data_bytes(entries)


def max_bytes(reference: Mapping[str, Any]) -> int:
    """Of the head of any delta of this form, with room to spare. To read a head takes many times
    its memory, so whoever sends a longer one is not heard out."""
    return 4096 + sum(1024 + 16 * len(name) for name in reference)


def codec_of(reader: Reader) -> str:
    """The codec, which is known here with these parameters. Raises DeltaInvalid."""
    header, file = reader.header, reader.path.name
    if header is None or "codec" not in header:
        raise DeltaInvalid("form", f"{file} is no delta: it names no codec")
    if header.get("format") != FORMAT:
        found = header.get("format")
        raise DeltaInvalid("form", f"{file} has delta format {found!r}, known here is {FORMAT}")
    codec = str(header["codec"])
    if codec not in CODECS:
        known = ", ".join(CODECS)
        raise DeltaInvalid("form", f"{file} has codec {codec!r}, known are {known}")
    found = {key: value for key, value in header.items() if key not in ("codec", "format")}
    found.pop("shapes", None)
    if found != CODECS[codec].parameters:
        known = f"known here is {dict(CODECS[codec].parameters)}"
        raise DeltaInvalid("form", f"{file} has {codec} with parameters {found}, {known}")
    return codec


def shapes_of(reader: Reader, codec: Codec) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors by name, sorted, once every part of each is there as it must be."""
    file = reader.path.name
    names: dict[str, set[str]] = {}
    for stored in reader.names:
        part, _, name = stored.partition("/")
        dtype = reader.dtype(stored)
        if part not in codec.parts or NAMES[codec.parts[part]] != dtype:
            what = f"{file} has {stored!r} of {dtype}, which is no part of a delta"
            raise DeltaInvalid("form", what)
        names.setdefault(name, set()).add(part)
    for name, parts in names.items():
        if lacking := set(codec.parts) - parts:
            raise DeltaInvalid("form", f"{file} lacks {min(lacking)} of {name!r}")
    if codec.elementwise:
        (part,) = codec.parts
        found = ((name, list(reader.shape(f"{part}/{name}"))) for name in sorted(names))
        return {name: _shape(file, name, shape) for name, shape in found}
    said = (reader.header or {}).get("shapes")
    if not isinstance(said, dict) or said.keys() != names.keys():
        raise DeltaInvalid("form", f"{file} does not say the shape of each of its tensors")
    shapes = {name: _shape(file, name, said[name]) for name in sorted(names)}
    for name, shape in shapes.items():
        for part, length in codec.lengths(math.prod(shape)).items():
            if reader.shape(f"{part}/{name}") != (length,):
                what = f"{file} has {part} of {name!r} of another length than {list(shape)} needs"
                raise DeltaInvalid("form", what)
    return shapes


def _shape(file: str, name: str, said: object) -> tuple[int, ...]:
    sizes: list[Any] = said if isinstance(said, list) else [None]
    fit = all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in sizes)
    few = fit and len(sizes) <= _MAX_DIMENSIONS  # so their product is soon known
    if few and math.prod(max(size, 1) for size in sizes) <= MAX_ELEMENTS:
        return tuple(sizes)
    raise DeltaInvalid("form", f"{file} says {said!r} for the shape of {name!r}")


def compare(path: Path, found: Shapes, reference: Mapping[str, Any]) -> None:
    """Raises DeltaInvalid unless names and shapes are those of `reference`."""
    expected = {name: tuple(one.shape) for name, one in reference.items()}
    if lacking := sorted(expected.keys() - found.keys()):
        what = f"{path.name} lacks {len(lacking)} of the model's tensors, first {lacking[0]!r}"
        raise DeltaInvalid("form", what)
    if foreign := sorted(found.keys() - expected.keys()):
        what = f"{path.name} has {len(foreign)} foreign tensors, first {foreign[0]!r}"
        raise DeltaInvalid("form", what)
    for name in sorted(expected):
        if found[name] != expected[name]:
            raise DeltaInvalid(
                "form",
                f"{path.name} has {name!r} of shape {list(found[name])}, "
                f"the model has {list(expected[name])}",
            )
