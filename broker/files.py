"""Files that others rely on: replaced whole or not at all, whatever ends the writing."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Make the file anew, of this mode from its first byte on. Raises OSError, which names it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_secret(path: Path, text: str) -> None:
    """A file that its owner alone may read."""
    replace_file(path, text, 0o600)
