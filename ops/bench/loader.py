"""`atoll bench loader`: batches prepared, beside what the demo's model consumes.

The loader reads every block of an epoch of the demo's data in the run's order, from the memory maps
to tensors; the demo's model, the smallest preset, trains on blocks of the same. Both on one thread,
taking turns.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import torch

from eventlog.config import RunConfig
from ops import configure
from ops.bench.measure import Progress, Report, at_least, measured
from ops.demo.stage import CONFIG
from sitehub import build, sources
from sitehub.batches import batches_of_block
from sitehub.corpus import Corpus
from sitehub.model import build_model
from sitehub.training import InnerLoop


def run(quick: bool, progress: Progress) -> Report:
    """See `ops.commands.bench`."""
    num_runs, num_trained = (1, 1) if quick else (5, 8)
    folder = Path(tempfile.mkdtemp(prefix="atoll-bench-"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress("building the data", 0, num_runs + 1)
        options = build.Options(subset=32 if quick else 1)
        corpus = build.build([sources.standard_library()], folder / "data", options)
        config = configure.load(CONFIG)
        model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
        loop = InnerLoop(model, corpus, config.inner, config.data.block_sequences)
        loop.train_block(0, (0.0, 0.01), lambda _: None)  # the first steps are slower
        prepared, consumed = [], []
        for number in range(num_runs):
            progress("reading and training", 1 + number, num_runs + 1)
            prepared.append(_prepared(corpus, config))
            consumed.append(_consumed(loop, num_trained))
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(folder, ignore_errors=True)
    measure = measured(
        "loader",
        prepared,
        "batches/s",
        against="the smallest preset (demo.toml) trains",
        against_values=consumed,
        target=at_least(50, of="ratio"),
    )
    notes = (
        f"batches of {config.inner.batch_sequences} sequences of {corpus.sequence_tokens} tokens, "
        f"{corpus.num_sequences:,} sequences an epoch; pages that the system holds already",
    )
    return Report("loader", (measure,), num_runs, notes)


def _prepared(corpus: Corpus, config: RunConfig) -> float:
    """Batches a second over all blocks of an epoch."""
    size = config.data.block_sequences
    began, num_batches = time.perf_counter(), 0
    for block in range(-(-corpus.num_sequences // size)):
        for inputs, _ in batches_of_block(corpus, block, size, config.inner.batch_sequences):
            num_batches += bool(len(inputs))
    return num_batches / (time.perf_counter() - began)


def _consumed(loop: InnerLoop, num_blocks: int) -> float:
    """Batches a second that the inner loop trains."""
    results = [
        loop.train_block(block, (0.1, 0.1), lambda _: None) for block in range(1, num_blocks + 1)
    ]
    return sum(one.steps for one in results) / sum(one.seconds for one in results)
