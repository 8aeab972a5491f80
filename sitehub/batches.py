"""Blocks of samples as batches of tensors, read from the memory map.

Block b holds positions b*B .. b*B + B - 1 of an epoch (the last block may be short), at every site
the same. Position p is sequence p*stride mod n, with a stride near n over the golden ratio and
coprime to n: each sequence has one position, and any run of positions is spread evenly over the
corpus. Neighbouring sequences come from one file; a block of them would train on that file alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from sitehub.corpus import Corpus
from sitehub.sources import DataInvalid
from sitehub.tokenfiles import Tokens

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, targets: int64 [sequences, L]
_GOLDEN = (math.sqrt(5) - 1) / 2


def stride(num_sequences: int) -> int:
    """The step from one position's sequence to the next one's: the number nearest to n times
    0.618... that has no factor in common with n (of two equally near, the larger)."""
    best = round(num_sequences * _GOLDEN)
    for distance in range(num_sequences):
        for step in (best + distance, best - distance):
            if 0 < step < num_sequences and math.gcd(step, num_sequences) == 1:
                return step
    return 1  # a single sequence


def sequences_of_block(block: int, block_sequences: int, num_sequences: int) -> list[int]:
    """The sequences of a block, in training order. Raises DataInvalid beyond the last block."""
    first = block * block_sequences
    if not 0 <= first < num_sequences:
        raise DataInvalid(
            f"block {block} is none of this data's {-(-num_sequences // block_sequences)} blocks"
        )
    step = stride(num_sequences)
    last = min(first + block_sequences, num_sequences)
    return [position * step % num_sequences for position in range(first, last)]


def batches_of_block(
    corpus: Corpus, block: int, block_sequences: int, batch_sequences: int
) -> Iterator[Batch]:
    """The batches of one block on the CPU; the last may be short. Raises DataInvalid."""
    sequences = sequences_of_block(block, block_sequences, corpus.num_sequences)
    windows = windows_of(corpus.training, corpus.sequence_tokens)
    for start in range(0, len(sequences), batch_sequences):
        yield _batch(windows, sequences[start : start + batch_sequences])


def heldout_batches(corpus: Corpus, num_sequences: int, batch_sequences: int) -> Iterator[Batch]:
    """The first held-out sequences in file order, on the CPU."""
    windows = windows_of(corpus.heldout, corpus.sequence_tokens)
    for start in range(0, num_sequences, batch_sequences):
        yield _batch(windows, list(range(start, min(start + batch_sequences, num_sequences))))


def windows_of(tokens: Tokens, sequence_tokens: int) -> Tokens:
    """A view of a token file as [num_sequences, L + 1]: each row's inputs and the token after
    them, which is also the first of the next row. Nothing is copied or read."""
    num_sequences = (len(tokens) - 1) // sequence_tokens
    step = tokens.itemsize
    return np.lib.stride_tricks.as_strided(
        tokens,
        shape=(num_sequences, sequence_tokens + 1),
        strides=(sequence_tokens * step, step),
        writeable=False,
    )


def _batch(windows: Tokens, sequences: list[int]) -> Batch:
    """Rows as int64, which embeddings and losses take: the one copy; both tensors are its views."""
    rows = torch.from_numpy(windows[sequences].astype(np.int64))
    return rows[:, :-1], rows[:, 1:]
