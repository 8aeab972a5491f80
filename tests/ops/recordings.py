"""Logs of real runs, as they were exported; kept packed."""

from __future__ import annotations

import lzma
from pathlib import Path

from eventlog.chain import Record
from eventlog.export import read_export

FOLDER = Path(__file__).parent / "recorded"


def demo_log(folder: Path) -> Path:
    """The recorded demo's log as a file in `folder`."""
    file = folder / "demo.atoll"
    file.write_bytes(lzma.decompress((FOLDER / "demo.atoll.xz").read_bytes()))
    return file


def demo_records(folder: Path) -> list[Record]:
    """Its records."""
    return list(read_export(demo_log(folder)))
