"""`atoll bench codec-quality`: what few bits, and overlap, cost in held-out loss.

Three equal sites train a tiny Qwen3 on the standard library's source, each arm on the same blocks
in the same order from the same parameters: arms of one seed differ in codec or overlap alone, so
their differences to fp32 without overlap are paired. Every arm runs the code of a real run.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ops.bench.measure import Progress, Report, at_most, measured

NUM_SITES = 3
SEEDS = (1, 2, 3)
ROUNDS = 20
BUDGET_S = 640.0  # what a run without --quick may take
SUBSET = 4  # every fourth file of the standard library
WITHIN_NATS = 0.01
_T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # Student, by n

MODEL = {  # 1.2 million parameters, as the demo's
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to exchange. `delay_blocks`: see `ops.bench.pocket.PocketRun`."""

    name: str
    codec: str
    delay_blocks: int = 0


BASE = Arm("fp32", "fp32")
ARMS = (
    BASE,
    Arm("bf16", "bf16"),
    Arm("int8", "int8"),
    Arm("4-bit", "4-bit"),
    Arm("top-k", "top-k"),
    Arm("overlap", "fp32", 1),
)
_TARGETS = {"int8": at_most(WITHIN_NATS), "4-bit": at_most(WITHIN_NATS)}


@dataclass(frozen=True, slots=True)
class Row:
    """One arm of one seed."""

    arm: str
    seed: int
    loss: float
    tokens: int
    rounds: int
    delta_bytes: int
    update_bytes: int
    seconds: float


def run(quick: bool, progress: Progress) -> Report:
    """Three seeds, or as many as fit into the time; one of two rounds, on little text, with
    `quick`."""
    if quick:
        return report(list(study(SEEDS[:1], 2, progress, math.inf, 16 * SUBSET)), 2)
    return report(list(study(SEEDS, ROUNDS, progress, BUDGET_S)), ROUNDS)


def study(
    seeds: Sequence[int],
    rounds: int,
    progress: Progress,
    budget_s: float,
    subset: int = SUBSET,
) -> Iterator[Row]:
    """Rows of whole seeds, each seed's as soon as all of its arms have ended; no seed is begun that
    would not end within the budget."""
    began, num_done = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="atoll-quality-") as name:
        data = Path(name) / "data"
        progress("building the data", 0, 1)
        _build(data, subset)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
            for seed in seeds:
                elapsed_s = time.monotonic() - began
                if num_done and elapsed_s * (num_done + 1) / num_done > budget_s:
                    return
                tasks = [pool.submit(play, arm, seed, rounds, data) for arm in ARMS]
                for count, _ in enumerate(as_completed(tasks), num_done * len(ARMS) + 1):
                    progress("runs", count, len(ARMS) * len(seeds))
                yield from (task.result() for task in tasks)
                num_done += 1


def play(arm: Arm, seed: int, rounds: int, data: Path) -> Row:
    """One run, in a process of its own with one thread."""
    import torch

    from ops.bench.pocket import PocketRun
    from sitehub.corpus import Corpus

    torch.set_num_threads(1)
    began, corpus = time.monotonic(), Corpus.open(data)
    with tempfile.TemporaryDirectory(prefix="atoll-quality-") as folder:
        one = PocketRun(
            corpus,
            config_of(arm, seed, rounds),
            Path(folder),
            num_sites=NUM_SITES,
            delay_blocks=arm.delay_blocks,
        )
        found = one.play()
    return Row(
        arm.name,
        seed,
        found.loss,
        found.tokens,
        found.rounds,
        found.delta_bytes,
        found.update_bytes,
        time.monotonic() - began,
    )


def config_of(arm: Arm, seed: int, rounds: int) -> Any:
    """The run's configuration: H = 12 steps in blocks of four, the demo's rates."""
    from eventlog.config import RunConfig

    return RunConfig.model_validate(
        {
            "name": "quality",
            "seed": seed,
            "target": {"rounds": rounds},
            "data": {"block_sequences": 32},
            "model": MODEL,
            "inner": {"steps": 12, "batch_sequences": 8, "lr": 4e-3, "warmup": 0.05},
            "outer": {
                "lr": 0.7,
                "momentum": 0.6,
                "delta_codec": arm.codec,
                "update_codec": arm.codec,
            },
        }
    )


def report(rows: Sequence[Row], rounds: int) -> Report:
    """Paired differences to fp32 without overlap, in nats; medians over the seeds."""
    seeds = sorted({row.seed for row in rows})
    loss = {(row.arm, row.seed): row.loss for row in rows}
    measures, notes = [], []
    for arm in ARMS[1:]:
        gaps = [loss[arm.name, seed] - loss[BASE.name, seed] for seed in seeds]
        measures.append(measured(arm.name, gaps, "nats", target=_TARGETS.get(arm.name)))
        notes.append(f"{arm.name}: {interval(gaps)}; {_cost(rows, arm.name)}")
    notes.insert(0, f"held-out loss minus that of fp32 without overlap, which is {_base(rows)}")
    tokens = rows[0].tokens
    notes.append(
        f"{NUM_SITES} sites, {rounds} rounds, {tokens:,} tokens each arm, seeds "
        f"{', '.join(map(str, seeds))}; overlap: one block of the next delta before each fold"
    )
    return Report("codec-quality", tuple(measures), len(seeds), tuple(notes))


def interval(gaps: Sequence[float]) -> str:
    """Mean and 95 % interval (Student's t) of paired differences."""
    if len(gaps) < 2:
        return f"{gaps[0]:+.4f} nats in one pair"
    half = _T_975[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps))
    return f"{fmean(gaps):+.4f} ± {half:.4f} nats (95 % of {len(gaps)} pairs)"


def _base(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.loss:.4f}" for row in rows if row.arm == BASE.name)


def _cost(rows: Sequence[Row], arm: str) -> str:
    one = next(row for row in rows if row.arm == arm)
    return f"{one.delta_bytes:,} bytes up and {one.update_bytes:,} down a round and site"


def _build(data: Path, subset: int) -> None:
    from sitehub import build, sources

    options = build.Options(subset=subset)
    build.build([sources.standard_library()], data, options, lambda *_: None)


def as_line(row: Row) -> str:
    """A row as it is recorded."""
    return json.dumps(asdict(row), sort_keys=True)
