"""A tokenizer that is given: a tokenizer.json, a folder of a model, or a name on the hub.

The tokenizer.json that the folder or the repository holds is taken byte for byte: every site then
has the same one. Where there is none (an old tokenizer of another form) transformers makes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sitehub import tokenizer as bpe
from sitehub.documents import DataInvalid

_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class Given:
    """A tokenizer.json and the token that ends a document."""

    data: bytes
    end_of_document: str


def read(name: str, end_of_document: str | None = None) -> Given:
    """Find and read it. Raises DataInvalid."""
    path = Path(name)
    if path.is_file():
        data, named = _bytes(path), None
    elif path.is_dir():
        data, named = _from(name, lambda part: path / part if (path / part).is_file() else None)
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".json"):
        raise DataInvalid(f"{name}: no such tokenizer: neither a file nor a folder")
    else:
        data, named = _from(name, lambda part: _downloaded(name, part))
    tokenizer = bpe.read(data, name)
    end = end_of_document or _end(tokenizer, named)
    if end is None:
        raise DataInvalid(
            f"{name}: has no {bpe.END_OF_DOCUMENT} and names no end of a sequence: name the token "
            "to end documents with (--end-of-document)"
        )
    bpe.end_of_document_id(tokenizer, end, name)
    return Given(data, end)


def _from(name: str, find: Callable[[str], Path | None]) -> tuple[bytes, str | None]:
    """The tokenizer.json of a folder or repository, and the token that its settings name as the
    end of a sequence."""
    file, config = find(_FILE), find(_CONFIG)
    if file is None:
        return _converted(name)
    return _bytes(file), _named(config) if config else None


def _named(config: Path) -> str | None:
    try:
        token = json.loads(_bytes(config)).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise DataInvalid(f"{config}: is damaged, it cannot be read: {error}") from error
    return token.get("content") if isinstance(token, dict) else token


def _end(tokenizer: Any, named: str | None) -> str | None:
    usual = tokenizer.token_to_id(bpe.END_OF_DOCUMENT) is not None
    return bpe.END_OF_DOCUMENT if usual else named


def _downloaded(name: str, part: str) -> Path | None:
    """A file of a repository on the hub, from the cache where it is there; None where the
    repository has none. Raises DataInvalid."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, part))
    except LocalEntryNotFoundError as error:
        if part == _CONFIG:
            return None
        raise _not_found(name, error) from error
    except EntryNotFoundError:
        return None
    except Exception as error:  # of many families: names, rights, connections
        raise _not_found(name, error) from error


def _not_found(name: str, error: Exception) -> DataInvalid:
    why = str(error).strip().partition("\n")[0]
    return DataInvalid(f"{name}: no tokenizer here, and none from the Hugging Face hub: {why}")


def _converted(name: str) -> tuple[bytes, str | None]:
    """By transformers, from whatever form it has there."""
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(name)
        data = bpe.to_bytes(found.backend_tokenizer)
    except Exception as error:  # of many families
        why = str(error).strip().partition("\n")[0]
        raise DataInvalid(f"{name}: no tokenizer that can be read: {why}") from error
    return data, found.eos_token


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataInvalid(f"{path}: cannot be read: {error.strerror}") from error
