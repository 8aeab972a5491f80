"""English beside the standard library: the documentation of cloud services that botocore carries.

About 28 MB in a package that is well kept and installs from the usual place: text for studies of
quality where nothing can be downloaded. A document is what one service says of itself, of its
operations and of their parts, in the order of its file, tags removed, each text once. What is
written depends on botocore's version alone, which the source's label has.
"""

from __future__ import annotations

import gzip
import html
import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventlog.errors import AtollError

if TYPE_CHECKING:
    from sitehub.sources import Files

_BREAK = re.compile(r"</?(?:p|li|ul|ol|dl|dt|dd|h\d|note|important|br|pre|tr|div)\b[^>]*>", re.I)
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"[ \t]*\n\s*")


class PeerMissing(AtollError):
    """botocore, whose texts these are, is not installed."""


def services() -> list[Path]:
    """The files of botocore, one a service and version of its interface. Raises PeerMissing."""
    try:
        import botocore
    except ModuleNotFoundError as error:
        raise PeerMissing("botocore is not installed: install atoll[bench]") from error
    return sorted(Path(botocore.__file__).parent.glob("data/*/*/service-2.json.gz"))


def version() -> str:
    """botocore's."""
    return importlib.metadata.version("botocore")


def documents(subset: int = 1) -> Iterator[str]:
    """The text of every `subset`-th service. Raises PeerMissing."""
    for path in services()[::subset]:
        with gzip.open(path) as file:
            told = dict.fromkeys(map(plain, _documentation(json.load(file))))
        if text := "\n\n".join(one for one in told if one):
            yield text + "\n"


def plain(markup: str) -> str:
    """A text without its tags: blocks become lines."""
    text = html.unescape(_TAG.sub("", _BREAK.sub("\n", markup)))
    return _SPACE.sub("\n", text).strip()


def write(path: Path, subset: int = 1) -> Files:
    """The documents as JSON Lines at `path`, compressed if it ends so; the source they are."""
    from sitehub.sources import file

    opened: Any = gzip.GzipFile(path, "wb", mtime=0) if path.suffix == ".gz" else path.open("wb")
    with opened as stream:
        for text in documents(subset):
            stream.write(json.dumps({"text": text}).encode() + b"\n")
    return file(path, label={"kind": "botocore", "version": version(), "subset": subset})


def _documentation(part: Any) -> Iterator[str]:
    """Every text under a key "documentation", in the order of the file."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _documentation(value)
    elif isinstance(part, list):
        for value in part:
            yield from _documentation(value)
