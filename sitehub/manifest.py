"""What a data directory holds, in one canonical JSON file whose digest a run is bound to.

Nothing in it is of one machine: no absolute path, no time, no host. Two sites that build from the
same files with the same tokenizer write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from eventlog.events import Count, Digest, Positive
from sitehub.documents import ODDITIES, DataInvalid
from sitehub.tokenfiles import DType

FILE_NAME = "manifest.json"
_DIGEST_KEY = "manifest_digest"
FORMAT: Final = "atoll data 2"
_ORDER = ("format", "settings", "sources", "tokenizer", "odd", "training", "heldout")


class Part(BaseModel):
    """A piece of the manifest: frozen, nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceEntry(Part):
    """A source: what it is, and the digest over the documents that were taken from it, in order.
    num_bytes: of their text in UTF-8."""

    label: dict[str, Any]
    num_documents: Count
    num_bytes: Count
    digest: Digest


class Settings(Part):
    """How text became sequences and a split."""

    sequence_tokens: Positive  # L: tokens that a sequence trains
    subset: Positive  # every so many-th document was taken, by its digest
    heldout_every: Positive  # every so many-th document taken is held out, by its digest
    forced: Digest | None  # the one document that is held out because none was by that rule
    file_bytes: Positive  # a token file holds at most so many


class TokenizerEntry(Part):
    """tokenizer.json: its digest, the rows an embedding needs, the token after each document."""

    digest: Digest
    vocab_size: Positive
    end_of_document: str
    end_of_document_id: Count


class TokenFile(Part):
    """A token file: its name in the data directory, its tokens, the sha256 of its bytes."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[0-9]{5}\.bin$")]
    num_tokens: Positive
    digest: Digest


class Split(Part):
    """The token files of a split, in order. num_bytes: of the documents' text in UTF-8, for bits
    per byte."""

    num_documents: Positive
    num_bytes: Positive
    num_tokens: Positive
    num_sequences: Positive
    dtype: DType
    files: tuple[TokenFile, ...]


class Manifest(Part):
    """The digested content of manifest.json. odd: what `documents.ODDITIES` counts, of all that
    was read."""

    format: Literal["atoll data 2"] = FORMAT
    sources: tuple[SourceEntry, ...]
    settings: Settings
    tokenizer: TokenizerEntry
    odd: dict[str, Count]
    training: Split
    heldout: Split

    @model_validator(mode="after")
    def _adds_up(self) -> Manifest:
        """What the parts say of each other. Raises ValueError."""
        for split in (self.training, self.heldout):
            if sum(file.num_tokens for file in split.files) != split.num_tokens:
                raise ValueError("the tokens of the files are not those of the split")
        if set(self.odd) != set(ODDITIES):
            raise ValueError("the counts of odd documents are not those of this format")
        return self

    @property
    def num_documents(self) -> int:
        """Of both splits."""
        return self.training.num_documents + self.heldout.num_documents

    def digest(self) -> str:
        """sha256 (hex) of the content as compact JSON with sorted keys."""
        return hashlib.sha256(_canonical(self.model_dump(mode="json"))).hexdigest()

    def to_bytes(self) -> bytes:
        """manifest.json: sorted, indented for people, the digest included."""
        content = self.model_dump(mode="json") | {_DIGEST_KEY: self.digest()}
        return (json.dumps(content, sort_keys=True, indent=2) + "\n").encode()


def read(directory: Path) -> Manifest:
    """The manifest of a data directory, or the file itself, checked against its own digest, byte
    for byte. Raises DataInvalid."""
    path = directory if directory.is_file() else directory / FILE_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataInvalid(
            f"{directory}: no data here ({FILE_NAME}: {error.strerror}); "
            "build it with `atoll data build`"
        ) from error
    try:
        content = json.loads(data)
        found = content["format"]
        if found != FORMAT and str(found).startswith("atoll data "):
            raise DataInvalid(
                f"{path}: is of the format {found!r}, this atoll reads {FORMAT!r}; build the data "
                "again with the version that the run's sites have"
            )
        stated = content.pop(_DIGEST_KEY)
        manifest = Manifest.model_validate(content)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        first = str(error).splitlines()[0]
        raise DataInvalid(f"{path}: is damaged, it cannot be read: {first}") from error
    if manifest.digest() != stated or manifest.to_bytes() != data:
        raise DataInvalid(f"{path}: is damaged, its content is not what its digest names")
    return manifest


def first_difference(ours: Manifest, theirs: Manifest) -> str | None:
    """The first field in which two manifests differ, with both values; None if they are equal.
    Causes come before effects: settings, sources, tokenizer, then the token files."""
    a, b = ours.model_dump(mode="json"), theirs.model_dump(mode="json")
    for key in _ORDER:
        found = _difference(key, a[key], b[key])
        if found:
            return found
    return None


def _difference(name: str, a: Any, b: Any) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(key for key in b if key not in a)]
        pairs = [(f"{name}.{key}", a.get(key), b.get(key)) for key in keys]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(a, b, strict=True))]
    else:
        return None if a == b else f"{name} is {a!r} here and {b!r} there"
    return next((found for pair in pairs if (found := _difference(*pair))), None)


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
