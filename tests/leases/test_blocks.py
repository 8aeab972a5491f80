"""Blocks: a permuted order per epoch, a short last block, weights in closed form."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.events import DataShape
from leases.blocks import BlockIndex, weights

SIZES = [1, 2, 3, 5, 7, 64, 97, 1000, 1009, 4096, 4097]


def index(num_blocks: int, *, seed: int = 1, block: int = 4, short: int = 0) -> BlockIndex:
    """`num_blocks` blocks of `block` sequences, the last one `short` sequences shorter."""
    shape = DataShape(
        manifest_digest="0" * 64,
        num_sequences=num_blocks * block - short,
        sequence_tokens=16,
        block_sequences=block,
    )
    return BlockIndex(seed, shape)


def order(blocks: BlockIndex, epoch: int) -> list[int]:
    return [blocks.at(epoch, position) for position in range(blocks.num_blocks)]


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_an_epoch_is_a_permutation(size: int) -> None:
    for epoch in (0, 1, 2**40):
        assert sorted(order(index(size), epoch)) == list(range(size))


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_the_order_is_a_permutation_for_any_size_seed_and_epoch(
    size: int, seed: int, epoch: int
) -> None:
    assert sorted(order(index(size, seed=seed), epoch)) == list(range(size))


@pytest.mark.parametrize("size", [64, 97, 1000])
def test_the_order_differs_by_epoch_and_by_seed(size: int) -> None:
    orders = [order(index(size, seed=seed), epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            fixed = sum(a == b for a, b in zip(one, other, strict=True))
            assert fixed <= 12  # two random orders agree in one place on average


def test_the_order_looks_random() -> None:
    size = 4096
    found = order(index(size), 0)
    steps = [abs(a - b) for a, b in itertools.pairwise(found)]
    mean, spread = (size + 1) / 3, size / math.sqrt(18 * size)
    assert abs(sum(steps) / len(steps) - mean) < 6 * spread


def test_the_last_block_may_be_short_and_counts_its_real_tokens() -> None:
    blocks = index(5, short=3)
    assert blocks.num_blocks == 5
    assert [blocks.tokens(block) for block in range(5)] == [64, 64, 64, 64, 16]
    assert sum(map(blocks.tokens, range(5))) == blocks.epoch_tokens == 17 * 16


def test_blocks_cover_every_sequence_once() -> None:
    blocks = index(7, short=2)
    covered = [sequence for block in range(7) for sequence in blocks.sequences(block)]
    assert covered == list(range(26))


@pytest.mark.parametrize("block", [-1, 5, 2**62])
def test_there_is_no_block_outside_the_epoch(block: int) -> None:
    with pytest.raises(IndexError):
        index(5).tokens(block)


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=50))
def test_weights_are_tokens_over_all_tokens_rounded_once(tokens: list[int]) -> None:
    found = weights(tokens)
    total = sum(tokens)
    assert found == [float(Fraction(count, total)) for count in tokens]
    assert math.isclose(math.fsum(found), 1.0, rel_tol=1e-14)


def test_weights_of_a_quarter_are_a_quarter() -> None:
    assert weights([1, 1, 2]) == [0.25, 0.25, 0.5]
