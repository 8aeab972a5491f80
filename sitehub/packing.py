"""One unit of text into two part files of tokens: what a process of a build does.

`python -m sitehub.packing FD` is such a process: it is told its setup and then one unit after the
other over the socket FD, and ends when that closes, so it outlives nobody.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eventlog.errors import AtollError
from sitehub.documents import Choice, Document, Tally, documents, pieces
from sitehub.rowfiles import Unit
from sitehub.tokenfiles import DTYPES, DType, FileWriter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPLITS = ("training", "heldout")
PIECE_CHARACTERS = 1 << 18  # of a text that are encoded at once; a longer one in pieces
_BATCH_CHARACTERS = 1 << 19  # encoded together: tokens take much memory while they are made
_BATCH_PIECES = 512

OnTokens = Callable[[int], None]  # tokens written since the last call


@dataclass(frozen=True, slots=True)
class Setup:
    """What every unit is packed by."""

    folder: Path  # of the part files
    tokenizer: bytes  # a tokenizer.json
    end_of_document_id: int
    dtype: DType
    choice: Choice


@dataclass(slots=True)
class Part:
    """What a unit gave one split; `digest` is of its part file."""

    num_documents: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    digest: str = ""


@dataclass(slots=True)
class Packed:
    """What a unit gave. documents_digest: over its documents' digests, in order; least: the
    smallest of these (hex)."""

    unit: int
    source: int
    documents_digest: str = ""
    least: str | None = None
    odd: dict[str, int] = field(default_factory=dict)
    parts: tuple[Part, Part] = field(default_factory=lambda: (Part(), Part()))


def part_file(folder: Path, unit: int, split: int) -> Path:
    """Where a unit's tokens for a split stand until they are joined."""
    return folder / f"{unit:08}.{SPLITS[split]}"


def taken(unit: Unit, choice: Choice, tally: Tally) -> Iterator[Document]:
    """A unit's documents that a build takes, in order. Raises DataInvalid."""
    for value in unit.values(tally):
        for document in documents(value, tally):
            if choice.takes(document.digest):
                yield document


def pack(unit: Unit, number: int, setup: Setup, tokenizer: Tokenizer, report: OnTokens) -> Packed:
    """Write the part files of a unit, whole or not at all. Raises DataInvalid, OSError."""
    packed, whole, tally = Packed(number, unit.source), hashlib.sha256(), Tally()
    with (
        FileWriter(part_file(setup.folder, number, 0)) as training,
        FileWriter(part_file(setup.folder, number, 1)) as heldout,
    ):
        encoder = _Encoder(setup, tokenizer, (training, heldout), packed.parts, report)
        for document in taken(unit, setup.choice, tally):
            whole.update(document.digest)
            name, split = document.digest.hex(), setup.choice.holds_out(document.digest)
            packed.least = name if packed.least is None else min(name, packed.least)
            packed.parts[split].num_documents += 1
            packed.parts[split].num_bytes += document.num_bytes
            encoder.add(document.text, int(split))
        encoder.flush()
    packed.documents_digest, packed.odd = whole.hexdigest(), dict(tally)
    for part, writer in zip(packed.parts, (training, heldout), strict=True):
        part.digest = writer.digest()
    return packed


class _Encoder:
    """Texts to tokens, many at once, each into its split's file and ended by one token."""

    def __init__(
        self,
        setup: Setup,
        tokenizer: Tokenizer,
        writers: tuple[FileWriter, FileWriter],
        parts: tuple[Part, Part],
        report: OnTokens,
    ) -> None:
        self._dtype = DTYPES[setup.dtype]
        self._end = np.array([setup.end_of_document_id], self._dtype).tobytes()
        self._tokenizer, self._writers = tokenizer, writers
        self._parts, self._report = parts, report
        self._waiting: list[tuple[str, int, bool]] = []  # a piece, its split, whether it is a last
        self._num_characters = 0

    def add(self, text: str, split: int) -> None:
        rest = list(pieces(text, PIECE_CHARACTERS))
        for number, piece in enumerate(rest, 1):
            self._waiting.append((piece, split, number == len(rest)))
            self._num_characters += len(piece)
            full = self._num_characters >= _BATCH_CHARACTERS
            if full or len(self._waiting) >= _BATCH_PIECES:
                self.flush()

    def flush(self) -> None:
        texts = [piece for piece, _, _ in self._waiting]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        num_tokens = 0
        for (_, split, last), encoding in zip(self._waiting, encodings, strict=True):
            ids = np.array(encoding.ids, self._dtype)
            self._writers[split].write(ids.tobytes() + (self._end if last else b""))
            self._parts[split].num_tokens += len(ids) + last
            num_tokens += len(ids) + last
        self._waiting, self._num_characters = [], 0
        self._report(num_tokens)


def serve(channel: Connection) -> None:
    """Pack what comes until the other side closes."""
    from sitehub import tokenizer as bpe

    setup: Setup = channel.recv()
    tokenizer = bpe.read(setup.tokenizer, "tokenizer.json")
    while True:
        number, unit = channel.recv()
        try:
            packed = pack(
                unit, number, setup, tokenizer, lambda tokens: channel.send(("tokens", tokens))
            )
        except ConnectionError:  # nobody listens any more
            raise
        except (AtollError, OSError) as error:
            channel.send(("failed", str(error)))
        except Exception as error:
            traceback.print_exc()
            place = getattr(unit, "file", unit)
            channel.send(("failed", f"{place}: {type(error).__name__}: {error}"))
        else:
            channel.send(("packed", packed))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, once it has been interrupted
    try:
        with Connection(int(sys.argv[1])) as channel:
            serve(channel)
    except (EOFError, ConnectionError):  # the parent has ended
        os._exit(0)


if __name__ == "__main__":
    from sitehub import packing  # what is sent must be of that module, not of __main__

    packing.main()
