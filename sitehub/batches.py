"""Blocks of samples as batches of tensors, read from the memory maps a little ahead of their use.

Block b holds positions b*B .. b*B + B - 1 of an epoch (the last block may be short), at every site
the same. Position p is sequence p*stride mod n, with a stride near n over the golden ratio and
coprime to n: each sequence has one position, and any run of positions is spread evenly over the
corpus. Neighbouring sequences come from one file; a block of them would train on that file alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

from sitehub.corpus import Corpus
from sitehub.documents import DataInvalid
from sitehub.tokenfiles import TokenStream

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, targets: int64 [sequences, L]
AHEAD = 4  # batches prepared while one is trained: what a page of the file takes to come is hidden
_GOLDEN = (math.sqrt(5) - 1) / 2


class Batches:
    """Batches over given sequences of a token stream, in order; the last may be short. Their
    number is known before any is read; a thread prepares up to `ahead` of them beforehand."""

    def __init__(
        self,
        tokens: TokenStream,
        sequence_tokens: int,
        sequences: Sequence[int],
        batch_sequences: int,
        ahead: int = AHEAD,
    ) -> None:
        self._tokens, self._length, self._ahead = tokens, sequence_tokens, ahead
        self._parts = [
            np.asarray(sequences[start : start + batch_sequences], dtype=np.int64)
            for start in range(0, len(sequences), batch_sequences)
        ]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Batch]:
        if self._ahead < 1 or len(self) == 1:
            yield from map(self._batch, self._parts)
            return
        parts, waiting = iter(self._parts), deque[Future[Batch]]()
        with ThreadPoolExecutor(1, "batches") as reader:
            try:
                for part in parts:
                    waiting.append(reader.submit(self._batch, part))
                    if len(waiting) > self._ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                reader.shutdown(wait=False, cancel_futures=True)

    def _batch(self, sequences: np.ndarray) -> Batch:
        """Both tensors are views of one copy."""
        rows = torch.from_numpy(self._tokens.rows(sequences * self._length, self._length + 1))
        return rows[:, :-1], rows[:, 1:]


@lru_cache(maxsize=16)
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
) -> Batches:
    """The batches of one block on the CPU; the last may be short. Raises DataInvalid."""
    sequences = sequences_of_block(block, block_sequences, corpus.num_sequences)
    return Batches(corpus.training, corpus.sequence_tokens, sequences, batch_sequences)


def heldout_batches(corpus: Corpus, num_sequences: int, batch_sequences: int) -> Batches:
    """The first held-out sequences in file order, on the CPU."""
    return Batches(corpus.heldout, corpus.sequence_tokens, range(num_sequences), batch_sequences)
