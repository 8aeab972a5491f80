"""`overhead`: the share of wall time that a round's exchange costs, at H inner steps a round.

With overlap a trainer stands still for a cut and a fold. Both are timed at real size where they
happen: between steps of training, with encoding and the outer step beside it on the same cores.
Without overlap it waits for the whole exchange, which is `atoll bench round`'s critical path.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.bench.resources import THREADS
from ops.bench.round import PHASES, ROUNDS, Found, ask, one_codec
from ops.bench.shapes import MODELS, count

CODEC, SITES, REPEATS = "4-bit", 3, 5
STEPS = (100, 500, 1_000, 2_000)
# Of Qwen3-0.6B across Snellius, LUMI and Frontier: seconds a round for exchange and checkpoint,
# the share that they were of wall time, and the seconds a step that follow from both.
PUBLISHED_S = 110.0
PUBLISHED = {100: 0.32, 2_000: 0.031}
STEP_S = {100: 2.34, 2_000: 1.72}
MOST = 0.01  # of wall time, at 100 steps
_ALONE_S = 10.0
_UNIT = "of wall time"

TRAINING = {  # what trains beside the exchange: steps are short, so that many fit in one
    "model_type": "qwen3",
    "tie_word_embeddings": True,
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "sequences": 1,
    "tokens": 128,
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Of each round, seconds. blocked: training stood still; beside: exchange beside training;
    lost: the share of training's throughput that was missing meanwhile. exchange: one site's way
    through a round, end to end, when nothing trains."""

    blocked: list[float]
    beside: list[float]
    lost: list[float]
    exchange: float

    @classmethod
    def of(cls, rounds: list[dict[str, float]], exchange: float) -> Costs:
        """From what `ops.bench.overhead_site` says of its rounds."""
        return cls(
            [one["cut"] + one["fold"] for one in rounds],
            [one["encode"] + one["apply"] for one in rounds],
            [1 - one["step alone"] / one["step beside"] for one in rounds],
            exchange,
        )


def run(quick: bool, progress: Progress, step_seconds: float | None = None) -> Report:
    """`step_seconds`: of an inner step, at every H; else as the published shares imply. Raises
    BenchFailed."""
    name, repeats = ("qwen3-50m", 1) if quick else ("qwen3-0.6b", REPEATS)
    exchange = asyncio.run(one_codec(CODEC, name, SITES, progress))
    progress("training, with the exchange beside it", 0, 1)
    with TemporaryDirectory(prefix="atoll-bench-") as folder:
        order = {
            "folder": folder,
            "model": MODELS[name],
            "codec": CODEC,
            "training": TRAINING,
            "rounds": repeats,
            "alone_s": _ALONE_S / 20 if quick else _ALONE_S,
        }
        answer = ask(Path(folder), order, "ops.bench.overhead_site")
    progress("training, with the exchange beside it", 1, 1)
    costs = Costs.of(answer["rounds"], exchange.critical_s())
    lines = measures(costs, step_seconds)
    return Report("overhead", lines, repeats, notes(name, answer, exchange, costs, step_seconds))


def measures(costs: Costs, step_seconds: float | None) -> tuple[Measure, ...]:
    """The table, with overlap and without, and what training loses beside."""
    lines = []
    for ending, cost_s in (("", median(costs.blocked)), (" without overlap", costs.exchange)):
        for steps in STEPS:
            published = PUBLISHED.get(steps)
            lines.append(
                measured(
                    f"H={steps}{ending}",
                    [share(cost_s, steps, step_seconds)],
                    _UNIT,
                    against=None if published is None else "the published share",
                    against_values=published,
                    target=at_most(MOST) if not ending and steps == STEPS[0] else None,
                )
            )
    pairs = zip(costs.lost, costs.beside, strict=True)
    steps = STEPS[0]
    spread = [share(lost * beside, steps, step_seconds) for lost, beside in pairs]
    return (
        *lines,
        measured("throughput lost", costs.lost, "of a step's"),
        measured(f"throughput lost over H={steps}", spread, "of a round's"),
        measured("blocked", costs.blocked, "s"),
        measured("beside", costs.beside, "s"),
        measured(
            "exchange",
            [costs.exchange],
            "s",
            against="the published exchange and checkpoint",
            against_values=PUBLISHED_S,
        ),
    )


def share(cost_s: float, steps: int, step_seconds: float | None) -> float:
    """Of a round's wall time that a cost is, which comes to the time of its steps."""
    return cost_s / (steps * step_s(steps, step_seconds) + cost_s)


def step_s(steps: int, given: float | None) -> float:
    """Seconds of an inner step."""
    return given if given is not None else STEP_S.get(steps, STEP_S[STEPS[0]])


def notes(
    name: str, answer: dict[str, Any], exchange: Found, costs: Costs, step_seconds: float | None
) -> tuple[str, ...]:
    """What one has to know to read the figures."""
    rounds: list[dict[str, float]] = answer["rounds"]
    steps = ", ".join(f"{step_s(one, step_seconds):g} s at H={one:,}" for one in STEPS)
    return (
        f"{count(MODELS[name]):,} parameters ({name}), {CODEC} both ways, {THREADS} threads, "
        f"{answer['peak_gb']:.1f} GB; a step has {steps}",
        f"published, of Qwen3-0.6B across Snellius, LUMI and Frontier: {PUBLISHED_S:g} s a round, "
        "32 % of the wall clock at H=100, 3.1 % at H=2,000; that implies 2.34 and 1.72 s a step",
        f"with overlap training stands still for cut and fold: {_range(costs.blocked)} s together",
        *(f"{phase}: {_range([one[phase] for one in rounds])} s" for phase in rounds[0]),
        "throughput lost: steps of a small model on the same cores, alone and while encode and "
        "apply run beside them; where training is on an accelerator they share no cores. Upload "
        "and download are the hub's, in a process of its own, and are not in it",
        f"without overlap: one site's way through a round of {SITES}, medians of {ROUNDS} rounds "
        "of `atoll bench round`: "
        + ", ".join(f"{phase} {median(exchange.phases[phase]):.3g}" for phase in PHASES),
    )


def _range(values: list[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
