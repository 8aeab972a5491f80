"""Blocks of samples: how many, which samples, how many tokens, in which order they are granted.

Everything follows from the data manifest's shape and the run's seed, so all sites and auditors
agree without exchanging a list. Nothing here grows with the epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from eventlog.events import DataShape

_ROUNDS = 4  # of the Feistel network; four suffice to make an order look random
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class BlockIndex:
    """The blocks of any epoch. Block b means the same samples at every site and in every epoch;
    only the order in which they are granted changes with the epoch."""

    seed: int
    shape: DataShape

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of one epoch; the last one may be short."""
        return -(-self.shape.num_sequences // self.shape.block_sequences)

    def sequences(self, block: int) -> range:
        """The sequences of a block, as positions in the token files. Raises IndexError."""
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} of {self.num_blocks}")
        first = block * self.shape.block_sequences
        return range(first, min(first + self.shape.block_sequences, self.shape.num_sequences))

    def tokens(self, block: int) -> int:
        """Tokens a block trains: its weight in a merge (P5)."""
        if 0 <= block < self.num_blocks - 1:
            return self.block_tokens
        return len(self.sequences(block)) * self.shape.sequence_tokens

    @cached_property
    def block_tokens(self) -> int:
        """Tokens of a whole block."""
        return self.shape.block_sequences * self.shape.sequence_tokens

    @property
    def epoch_tokens(self) -> int:
        return self.shape.num_sequences * self.shape.sequence_tokens

    def at(self, epoch: int, position: int) -> int:
        """The block at a position of an epoch's order: a permutation of range(num_blocks).

        A Feistel network over the next even power of two, walked until it lands inside
        (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
        """
        return _at(self.seed, self.num_blocks, epoch, position)


def weights(tokens: Sequence[int]) -> list[float]:
    """A merge's weights from the ledger: tokens over all tokens, in float64 (P5)."""
    total = sum(tokens)
    return [count / total for count in tokens]


@lru_cache(maxsize=4096)  # who folds and who decides ask for the same places within a moment
def _at(seed: int, num_blocks: int, epoch: int, position: int) -> int:
    half_bits = max(1, -(-(num_blocks - 1).bit_length() // 2))
    keys = _keys(seed, epoch)
    value = position
    while True:
        value = _feistel(value, half_bits, keys)
        if value < num_blocks:
            return value


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    material = hashlib.sha256(f"atoll order {seed} {epoch}".encode()).digest()
    return tuple(int.from_bytes(material[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS))


def _feistel(value: int, half_bits: int, keys: tuple[int, ...]) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << half_bits | right


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit depends on every bit."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
