"""A data directory as a run uses it: checked when it is opened, then read through memory maps.

    manifest.json         what is here and how it was made, with the digest a run is bound to
    tokenizer.json        text to tokens and back
    training-00000.bin…   tokens of the training documents, each document ended by one token
    heldout-00000.bin…    the same of the held-out documents

Sequence i of a split's tokens trains L tokens: its inputs are tokens[i*L : i*L + L], its targets
the same shifted by one. So a split of n tokens has (n - 1) // L sequences, and at most L - 1 tokens
at its end train nothing.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from sitehub import manifest as manifests
from sitehub.documents import DataInvalid
from sitehub.manifest import Manifest, Split, TokenFile, first_difference
from sitehub.tokenfiles import DTYPES, DType, TokenStream, digest_file, open_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Corpus", "DataInvalid", "first_difference", "unigram", "verify"]

TOKENIZER = "tokenizer.json"
_READERS = 8  # files digested at once


@dataclass(frozen=True)
class Corpus:
    """An opened data directory."""

    directory: Path
    manifest: Manifest
    manifest_digest: str

    @classmethod
    def open(cls, directory: Path, verify: Literal["quick", "full"] = "quick") -> Corpus:
        """Open a directory. "quick" checks the manifest against its own digest and the files'
        sizes, "full" every byte. Raises DataInvalid, which names the first problem."""
        content = manifests.read(directory)
        problems = _size_problems(directory, content)
        if verify == "full" and not problems:
            problems = _byte_problems(directory, content)
        if problems:
            raise DataInvalid(problems[0])
        return cls(directory, content, content.digest())

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    @property
    def sequence_tokens(self) -> int:
        return self.manifest.settings.sequence_tokens

    @property
    def num_sequences(self) -> int:
        """Training sequences of one epoch."""
        return self.manifest.training.num_sequences

    @cached_property
    def training(self) -> TokenStream:
        return self._stream(self.manifest.training)

    @cached_property
    def heldout(self) -> TokenStream:
        return self._stream(self.manifest.heldout)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from sitehub import tokenizer  # the hub opens a corpus too, and needs no tokenizer

        return tokenizer.load(self.directory / TOKENIZER)

    def _stream(self, split: Split) -> TokenStream:
        return TokenStream(
            [open_tokens(self.directory / file.name, split.dtype) for file in split.files]
        )


def verify(directory: Path) -> list[str]:
    """What is wrong with a data directory, every byte looked at: one line a file, the manifest's
    first; [] if it is whole."""
    try:
        content = manifests.read(directory)
    except DataInvalid as error:
        return [str(error)]
    return _size_problems(directory, content) or _byte_problems(directory, content)


def unigram(corpus: Corpus, max_tokens: int | None = None) -> float:
    """Held-out perplexity of the unigram model with add-one smoothing, p(t) = (count(t) + 1) /
    (N + V) from the N training tokens, over the targets that `evaluate` takes: what a model must
    beat clearly to have learned anything of order."""
    counts = np.zeros(corpus.vocab_size)
    for chunk in corpus.training.chunks():
        counts += np.bincount(chunk, minlength=corpus.vocab_size)
    log_p = np.log((counts + 1.0) / (counts.sum() + len(counts)))
    targets = corpus.heldout[1 : 1 + num_heldout_targets(corpus, max_tokens)]
    return math.exp(-float(log_p[targets].mean()))


def num_heldout_targets(corpus: Corpus, max_tokens: int | None) -> int:
    """Held-out tokens that an evaluation predicts: whole sequences from the start, at least one,
    not more than `max_tokens` otherwise."""
    length, num_sequences = corpus.sequence_tokens, corpus.manifest.heldout.num_sequences
    if max_tokens is not None:
        num_sequences = min(num_sequences, max(1, max_tokens // length))
    return num_sequences * length


def _size_problems(directory: Path, content: Manifest) -> list[str]:
    problems = []
    for file, dtype in _token_files(content):
        path, expected = directory / file.name, file.num_tokens * DTYPES[dtype].itemsize
        if not path.is_file():
            problems.append(
                f"{path}: is missing; copy it from another site or build the data again"
            )
        elif (actual := path.stat().st_size) != expected:
            problems.append(f"{path}: has {actual} bytes, the manifest says {expected}")
    if not (directory / TOKENIZER).is_file():
        problems.append(f"{directory / TOKENIZER}: is missing; build the data again")
    return problems


def _byte_problems(directory: Path, content: Manifest) -> list[str]:
    expected = {TOKENIZER: content.tokenizer.digest}
    expected |= {file.name: file.digest for file, _ in _token_files(content)}
    problems = []
    with ThreadPoolExecutor(_READERS) as readers:  # a digest lets other threads run
        found = list(readers.map(lambda name: digest_file(directory / name), expected))
    for (name, digest), actual in zip(expected.items(), found, strict=True):
        if actual != digest:
            problems.append(
                f"{directory / name}: its bytes have digest {actual[:16]}…, the manifest says "
                f"{digest[:16]}…; the file has changed, copy it again or build the data again"
            )
    return problems


def _token_files(content: Manifest) -> list[tuple[TokenFile, DType]]:
    return [
        (file, split.dtype) for split in (content.training, content.heldout) for file in split.files
    ]
