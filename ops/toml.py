"""TOML as a person wrote it: a tree, or one error, whatever the text."""

from __future__ import annotations

import tomllib
from typing import Any


def read_toml(text: str) -> dict[str, Any]:
    """The tree. Raises ValueError, also for what the library only stumbles over: tables nested
    beyond all measure, numbers of thousands of digits."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
