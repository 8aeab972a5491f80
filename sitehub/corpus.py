"""A data directory as a run uses it: checked when it is opened, then read through memory maps.

    manifest.json     what is here and how it was made, with the digest a run is bound to
    tokenizer.json    text to tokens and back
    training.bin      tokens of the training documents, each document ended by one token
    heldout.bin       the same of the held-out documents

Sequence i of a token file trains L tokens: its inputs are tokens[i*L : i*L + L], its targets the
same shifted by one. So a file of n tokens has (n - 1) // L sequences, and at most L - 1 tokens at
its end train nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from sitehub import manifest as manifests
from sitehub.manifest import Manifest, Split, first_difference
from sitehub.sources import DataInvalid
from sitehub.tokenfiles import DTYPES, Tokens, digest_file, open_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Corpus", "DataInvalid", "first_difference", "unigram", "verify"]

TRAINING, HELDOUT, TOKENIZER = "training.bin", "heldout.bin", "tokenizer.json"


@dataclass(frozen=True)
class Corpus:
    """An opened data directory. Arrays are of unsigned integers, one dimension."""

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
    def training(self) -> Tokens:
        return open_tokens(self.directory / TRAINING, self.manifest.training.dtype)

    @cached_property
    def heldout(self) -> Tokens:
        return open_tokens(self.directory / HELDOUT, self.manifest.heldout.dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from sitehub import tokenizer  # the hub opens a corpus too, and needs no tokenizer

        return tokenizer.load(self.directory / TOKENIZER)


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
    counts = np.bincount(corpus.training, minlength=corpus.vocab_size).astype(np.float64)
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
    for name, split in _splits(content):
        path, expected = directory / name, split.num_tokens * DTYPES[split.dtype].itemsize
        if not path.is_file():
            problems.append(f"{path}: is missing; build the data again")
        elif (actual := path.stat().st_size) != expected:
            problems.append(f"{path}: has {actual} bytes, the manifest says {expected}")
    if not (directory / TOKENIZER).is_file():
        problems.append(f"{directory / TOKENIZER}: is missing; build the data again")
    return problems


def _byte_problems(directory: Path, content: Manifest) -> list[str]:
    expected = {TOKENIZER: content.tokenizer.digest}
    expected |= {name: split.digest for name, split in _splits(content)}
    problems = []
    for name, digest in expected.items():
        actual = digest_file(directory / name)
        if actual != digest:
            problems.append(
                f"{directory / name}: its bytes have digest {actual[:16]}…, the manifest says "
                f"{digest[:16]}…; the file has changed, build the data again"
            )
    return problems


def _splits(content: Manifest) -> tuple[tuple[str, Split], tuple[str, Split]]:
    return (TRAINING, content.training), (HELDOUT, content.heldout)
