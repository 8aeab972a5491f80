"""`atoll bench inner`: tokens per second through a site, beside a bare PyTorch loop.

The site is whole: hub, trainer, a broker and a coordinator as processes here, blocks leased, begun
and completed in the log, deltas encoded and stored, versions folded in. The loop is what one would
write without any of that (`ops.bench.inner_bare`): the same model, batch, optimizer and threads.
Both take turns, so what else the machine does falls on both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from eventlog.config import RunConfig, Target
from eventlog.events import BlockCompleted, SiteAdmitted, VersionApplied
from ops import configure
from ops.bench.measure import Progress, Report, at_least, measured
from ops.bench.rig import BenchFailed, Rig, rigged
from ops.demo.stage import CONFIG
from sitehub.corpus import Corpus

RUNS, QUICK_RUNS = 3, 1
WINDOW_S, QUICK_WINDOW_S = 60.0, 8.0
STEPS = 100  # H
WITHIN = 0.97


def run(quick: bool, progress: Progress) -> Report:
    """Three turns of both, a minute each; one short turn with `quick`."""
    return asyncio.run(_run(QUICK_RUNS if quick else RUNS, quick, progress))


def config_of(quick: bool) -> RunConfig:
    """The demo's model and batch, with H = 100 and overlap; rounds are shorter with `quick`."""
    demo = configure.load(CONFIG)
    inner = demo.inner.model_copy(update={"steps": 16 if quick else STEPS})
    outer = demo.outer.model_copy(update={"overlap": "delayed"})
    target = Target(rounds=1_000_000)
    changes = {"name": "bench", "target": target, "inner": inner, "outer": outer}
    return demo.model_copy(update=changes)


async def _run(num: int, quick: bool, progress: Progress) -> Report:
    config, window_s = config_of(quick), QUICK_WINDOW_S if quick else WINDOW_S
    ours, theirs, phases = [], [], dict[str, float]()
    progress("building the data", 0, num)
    async with rigged(config) as rig:
        rig.coordinate("coordinator")
        for number in range(num):
            progress("site", number, num)
            ours.append(await _site(rig, window_s))
            progress("bare loop", number, num)
            theirs.append(await asyncio.to_thread(_bare, config, rig.data, window_s))
        rounds = rig.view.run().version
        for _, event in rig.of(VersionApplied):
            for name, seconds in event.seconds.items():
                phases[name] = phases.get(name, 0.0) + seconds
    measure = measured(
        "tokens",
        ours,
        "tokens/s",
        against="a bare PyTorch loop",
        against_values=theirs,
        target=at_least(WITHIN, of="ratio"),
    )
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(phases.items()))
    notes = (
        f"one site, one thread, {config.inner.batch_sequences} sequences a step, H = "
        f"{config.inner.steps}, overlap; {window_s:g} s a turn, {rounds} versions in all",
        f"seconds of the site's exchange in all turns: {spent}",
    )
    return Report("inner", (measure,), num, notes)


async def _site(rig: Rig, window_s: float) -> float:
    """Tokens per second of a site that has just come in, by its own clock: from the end of its
    second block to the end of the first one behind the window."""
    after, shape = rig.last, rig.view.index()
    rig.site("alpha")
    await rig.until(lambda: rig.of(SiteAdmitted, after=after), "the site")
    done = await rig.until(lambda: _window(rig, after, window_s), "blocks", window_s + 300)
    rig.kill_site("alpha")
    times = [rig.at(sequence) for sequence, _ in done]
    tokens = sum(shape.tokens(event.block) for _, event in done[1:])
    return tokens / (times[-1] - times[0])


def _window(rig: Rig, after: int, window_s: float) -> list[tuple[int, BlockCompleted]] | None:
    done = rig.of(BlockCompleted, "site.alpha", after)[1:]
    if len(done) < 2 or rig.at(done[-1][0]) - rig.at(done[0][0]) < window_s:
        return None
    return done


def _bare(config: RunConfig, data: Path, window_s: float) -> float:
    """The same by a loop in a process of its own."""
    corpus = Corpus.open(data)
    task = {
        "model": config.model,
        "vocab_size": corpus.vocab_size,
        "inner": config.inner.model_dump(mode="json"),
        "sequence_tokens": corpus.sequence_tokens,
        "window_s": window_s,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ops.bench.inner_bare", json.dumps(task)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=window_s + 300,
        check=False,
    )
    if done.returncode:
        raise BenchFailed(f"the bare loop ended with {done.returncode}: {done.stderr[-500:]}")
    return float(done.stdout)
