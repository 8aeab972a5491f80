"""What a build has done so far, on disk, so that one that was killed goes on.

It stands in the data directory under `.build`, in a folder named by the digest of the plan: sources
(with the sizes and times of their files), settings and tokenizer. Another plan finds nothing to go
on from; the folders of others are removed. Every record is written behind what it speaks of.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from sitehub.manifest import TokenFile
from sitehub.packing import Packed, Part, part_file
from sitehub.tokenfiles import DTYPES, DType, write_file

FOLDER = ".build"
_TOKENIZER, _FORCED, _FILES = "tokenizer.json", "forced", "files.json"


class Journal:
    """The record of one plan in a data directory. `parts` is the folder of the part files."""

    def __init__(self, directory: Path, plan: str) -> None:
        self.parts = directory / FOLDER / plan[:16]
        for other in (directory / FOLDER).iterdir():
            if other.is_dir() and other != self.parts:
                shutil.rmtree(other)
        self.parts.mkdir(exist_ok=True)
        for stray in self.parts.glob("*.part"):
            stray.unlink(missing_ok=True)

    def tokenizer(self) -> bytes | None:
        """The one that was trained, if that is done."""
        return _read(self.parts / _TOKENIZER)

    def record_tokenizer(self, data: bytes) -> None:
        write_file(self.parts / _TOKENIZER, data)

    def forced(self) -> str | None:
        """The document that has to be held out, once that is known (`documents.Choice`)."""
        data = _read(self.parts / _FORCED)
        return data.decode() if data else None

    def record_forced(self, digest: str) -> None:
        write_file(self.parts / _FORCED, digest.encode())

    def packed(self, dtype: DType) -> dict[int, Packed]:
        """The units that are packed, by number: all whose part files stand as recorded, or went
        into token files already."""
        joined = any(map(self.files, (0, 1)))
        found = {}
        for path in self.parts.glob("*.json"):
            if path.stem.isdigit():
                packed = _packed(path.read_bytes())
                if joined or self._stands(packed, DTYPES[dtype].itemsize):
                    found[packed.unit] = packed
        return found

    def _stands(self, packed: Packed, itemsize: int) -> bool:
        files = [part_file(self.parts, packed.unit, split) for split in (0, 1)]
        return all(
            file.is_file() and file.stat().st_size == part.num_tokens * itemsize
            for file, part in zip(files, packed.parts, strict=True)
        )

    def record_packed(self, packed: Packed) -> None:
        write_file(self.parts / f"{packed.unit:08}.json", json.dumps(asdict(packed)).encode())

    def files(self, split: int) -> list[TokenFile]:
        """The token files of a split that are whole."""
        entries = json.loads(_read(self.parts / _FILES) or b"[[], []]")[split]
        return [TokenFile.model_validate(entry) for entry in entries]

    def record_file(self, split: int, file: TokenFile) -> None:
        files = [self.files(0), self.files(1)]
        files[split].append(file)
        content = [[one.model_dump(mode="json") for one in of] for of in files]
        write_file(self.parts / _FILES, json.dumps(content).encode())


def _packed(data: bytes) -> Packed:
    content = json.loads(data)
    training, heldout = (Part(**part) for part in content.pop("parts"))
    return Packed(**content, parts=(training, heldout))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
