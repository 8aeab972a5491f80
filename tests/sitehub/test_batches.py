"""Blocks mean the same samples everywhere, and cover an epoch once."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sitehub.batches import (
    Batches,
    batches_of_block,
    heldout_batches,
    sequences_of_block,
    stride,
)
from sitehub.corpus import Corpus
from sitehub.sources import DataInvalid
from sitehub.tokenfiles import TokenStream


@given(st.integers(1, 3000), st.integers(1, 100))
def test_blocks_of_an_epoch_hold_each_sequence_once(num_sequences: int, block: int) -> None:
    num_blocks = math.ceil(num_sequences / block)
    blocks = [sequences_of_block(b, block, num_sequences) for b in range(num_blocks)]
    assert sorted(s for sequences in blocks for s in sequences) == list(range(num_sequences))
    assert all(len(sequences) == block for sequences in blocks[:-1])
    assert len(blocks[-1]) == num_sequences - (num_blocks - 1) * block


@given(st.integers(200, 100_000))
def test_a_block_is_spread_over_the_corpus(num_sequences: int) -> None:
    """64 neighbours by the golden ratio leave no gap of a tenth of the corpus (the three-gap
    theorem gives 2.7 % for the exact ratio; a coprime stride is only near it)."""
    places = sorted(sequences_of_block(0, 64, num_sequences))
    gaps = [b - a for a, b in zip(places, [*places[1:], places[0] + num_sequences], strict=True)]
    assert max(gaps) < num_sequences / 10


@given(st.integers(2, 5000))
def test_stride_is_coprime_and_none_is_nearer_to_the_golden_ratio(num_sequences: int) -> None:
    golden = num_sequences * (math.sqrt(5) - 1) / 2
    coprime = [s for s in range(1, num_sequences) if math.gcd(s, num_sequences) == 1]
    nearest = min(abs(s - golden) for s in coprime)
    assert stride(num_sequences) in coprime
    assert abs(stride(num_sequences) - golden) <= nearest + 1  # nearest to the rounded product


def test_batches_hold_inputs_and_the_tokens_after_them(corpus: Corpus) -> None:
    sequences = sequences_of_block(1, 10, corpus.num_sequences)
    batches = list(batches_of_block(corpus, 1, 10, 4))
    assert [tuple(inputs.shape) for inputs, _ in batches] == [(4, 16), (4, 16), (2, 16)]
    assert all(x.dtype is y.dtype is torch.int64 for x, y in batches)
    rows = [pair for x, y in batches for pair in zip(x, y, strict=True)]
    for sequence, (inputs, targets) in zip(sequences, rows, strict=True):
        first = sequence * 16
        assert inputs.tolist() == corpus.training[first : first + 16].tolist()
        assert targets.tolist() == corpus.training[first + 1 : first + 17].tolist()


def test_last_block_is_short(corpus: Corpus) -> None:
    last = (corpus.num_sequences - 1) // 16
    rest = corpus.num_sequences - 16 * last
    assert 0 < rest < 16
    assert sum(len(x) for x, _ in batches_of_block(corpus, last, 16, 8)) == rest


@pytest.mark.parametrize("block", [-1, 1_000_000])
def test_block_outside_the_epoch_is_refused(block: int, corpus: Corpus) -> None:
    with pytest.raises(DataInvalid, match=str(block)):
        list(batches_of_block(corpus, block, 16, 8))


def test_heldout_batches_are_the_file_in_order(corpus: Corpus) -> None:
    targets = torch.cat([y.flatten() for _, y in heldout_batches(corpus, 5, 2)])
    assert targets.tolist() == corpus.heldout[1 : 1 + 5 * 16].tolist()


def stream(*lengths: int) -> TokenStream:
    """Tokens 0, 1, 2, ... in files of so many."""
    ends = np.cumsum(lengths)
    return TokenStream(
        [np.arange(end - n, end, dtype="<u2") for n, end in zip(lengths, ends, strict=True)]
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_a_stream_reads_as_one_file_would(lengths: list[int], start: int, stop: int) -> None:
    whole = list(range(sum(lengths)))
    tokens = stream(*lengths)
    assert len(tokens) == len(whole)
    assert tokens[start:stop].tolist() == whole[start:stop]
    assert [one for chunk in tokens.chunks() for one in chunk.tolist()] == whole


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12), st.randoms())
def test_rows_lie_in_one_file_or_across_several(lengths: list[int], width: int, random) -> None:
    whole = list(range(sum(lengths)))
    if width > len(whole):
        width = len(whole)
    starts = [random.randint(0, len(whole) - width) for _ in range(5)]
    rows = stream(*lengths).rows(np.array(starts), width)
    assert rows.dtype == np.int64
    assert rows.tolist() == [whole[start : start + width] for start in starts]


def test_a_run_within_a_file_is_a_view_of_the_map(corpus: Corpus) -> None:
    assert np.shares_memory(corpus.training[5:900], corpus.training.files[0])


def test_batches_are_ready_before_they_are_asked_for() -> None:
    """With three of five asked for, the reader goes on to the last, and no further than it may."""
    batches = Batches(stream(100), 4, range(20), 2, ahead=2)
    read: list[int] = []
    one = batches._batch
    batches._batch = lambda part: (read.append(int(part[0])), one(part))[1]  # type: ignore[method-assign]
    given = iter(batches)
    next(given)
    for _ in range(1000):
        if len(read) == 3:
            break
        time.sleep(0.01)
    assert read == [0, 2, 4]
    assert [x[0, 0].item() for x, _ in given] == [8, 16, 24, 32, 40, 48, 56, 64, 72]


def test_who_stops_in_the_middle_leaves_no_thread() -> None:
    given = iter(Batches(stream(100), 4, range(20), 2))
    next(given)
    given.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
