"""`torchft`: one outer round of 50 million parameters at two sites, beside torchft's DiLoCo.

A round is timed alike at both: from the moment when the slower site has done its inner steps until
both train on with the new parameters. Ours is everything there is: hubs, trainers, a coordinator, a
broker whose every write is on the disk before it is acknowledged. Theirs stays in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from eventlog.config import RunConfig
from eventlog.errors import AtollError
from eventlog.events import BlockCompleted, RoundClosed, RoundCommitted
from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.bench.resources import THREADS
from ops.bench.rig import Rig, rigged
from ops.bench.shapes import MODELS, count, shapes_of
from ops.home import Home
from sitehub.build import Options

VERSION, VARIABLE = "0.2.0", "ATOLL_TORCHFT_PYTHON"
MODEL, SITES = MODELS["qwen3-50m"], ("alpha", "beta")
CODECS = ("4-bit", "fp32")
ROUNDS, WARM_UP = 20, 2  # the first rounds touch memory for the first time, at both
BUDGETS_S = {"4-bit": 180.0, "fp32": 240.0}  # then there are fewer rounds, but these at least:
FEWEST = 3
SEQUENCE_TOKENS = 8  # a block is one step on one short sequence: it is not measured
PEER_S = 600.0


class PeerMissing(AtollError):
    """There is no torchft to compare with; the text says what its installation said."""


def run(quick: bool, progress: Progress) -> Report:
    """At least 20 rounds of each; three when quick. Raises PeerMissing, BenchFailed."""
    rounds = 3 if quick else ROUNDS
    python = _peer_python(progress)
    theirs = _theirs(python, rounds // 2 + rounds % 2, progress)
    ours = {codec: asyncio.run(_ours(codec, rounds, progress)) for codec in CODECS}
    theirs += _theirs(python, rounds // 2, progress)  # before and after ours
    counted = ", ".join(f"{len(found)} in {codec}" for codec, found in ours.items())
    said = (f"rounds: {counted}, {len(theirs)} of torchft", *notes())
    return Report("torchft", measures(ours, theirs), min(map(len, ours.values())), said)


def measures(ours: dict[str, list[float]], theirs: list[float]) -> tuple[Measure, ...]:
    """`ours`: by codec, and `theirs`: seconds of each round."""
    bounds = {"4-bit": 1.0, "fp32": 5.0}
    return tuple(
        measured(
            codec,
            ours[codec],
            "s",
            against=f"torchft {VERSION} DiLoCo, gloo, fp32",
            against_values=theirs,
            target=at_most(bounds[codec], "ratio"),
        )
        for codec in CODECS
    )


def notes() -> tuple[str, ...]:
    """What one has to know to read the figures."""
    return (
        f"{count(MODEL):,} parameters in {len(shapes_of(MODEL))} tensors, two sites of one thread "
        f"each, ours with a coordinator of {THREADS}, which works while they wait; a round: from "
        "the end of the slower site's inner steps until both train on",
        "ours is durable: deltas, updates and events are on the disk before they are acknowledged "
        "(sync_interval: always), every version can be computed again from them; theirs is in "
        "memory alone. Neither writes snapshots meanwhile",
        f"theirs: torchft {VERSION}, DiLoCo of one fragment as it is by default (an allreduce a "
        "tensor, fp32, no delay), ProcessGroupGloo, synchronous quorum, one lighthouse; half of "
        "its rounds before ours, half after",
    )


# -- theirs ---------------------------------------------------------------------------------------


def _theirs(python: str, rounds: int, progress: Progress) -> list[float]:
    """Seconds of each round."""
    progress("torchft", 0, rounds)
    with TemporaryDirectory(prefix="atoll-bench-") as folder:
        shapes = Path(folder) / "shapes.json"
        shapes.write_text(json.dumps(list(shapes_of(MODEL).values())))
        script = Path(__file__).with_name("torchft_peer.py")
        command = [python, str(script), str(shapes), str(rounds + WARM_UP)]
        # safe path: beside the script lies a module that is called torchft too
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PEER_S, env=environment, check=False
        )
    if done.returncode:
        raise PeerMissing(f"torchft's side failed: {_last_line(done.stderr)}")
    said: dict[int, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        one = json.loads(line)
        said.setdefault(one["round"], []).append(one)
    progress("torchft", rounds, rounds)
    return [
        max(one["ready"] for one in said[number]) - max(one["trained"] for one in said[number])
        for number in sorted(said)[WARM_UP:]
    ]


def _peer_python(progress: Progress) -> str:
    """An interpreter that has torchft: $ATOLL_TORCHFT_PYTHON, or one of an environment that is made
    for it below ATOLL_HOME. Raises PeerMissing."""
    given = os.environ.get(VARIABLE)
    folder = Home.find().peer(f"torchft-{VERSION}")
    python = given or str(folder / "bin" / "python")
    if _has_peer(python):
        return python
    if given:
        raise PeerMissing(f"{VARIABLE} = {given}: has no torchft {VERSION}")
    progress("installing torchft", 0, 1)
    ours = torch.__version__.partition("+")[0]
    wanted = [f"torchft=={VERSION}", f"torch=={ours}"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [python, "-m", "pip", "install", "--quiet", *wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerMissing(
                f"no environment for torchft could be made in {folder}: {_last_line(done.stderr)}; "
                f"make one with `pip install {' '.join(wanted)}` and name its python in {VARIABLE}"
            )
    progress("installing torchft", 1, 1)
    return python


def _has_peer(python: str) -> bool:
    asked = "import importlib.metadata as m, torchft; print(m.version('torchft'))"
    try:
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.strip() == VERSION


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


# -- ours -----------------------------------------------------------------------------------------


async def _ours(codec: str, rounds: int, progress: Progress) -> list[float]:
    """Seconds of each round of a run whose deltas and updates have this codec."""
    options = Options(SEQUENCE_TOKENS, vocab_size=512, subset=40)
    async with rigged(_config(codec), options, THREADS) as rig:
        rig.coordinate("coordinator")
        for name in SITES:
            rig.site(name)
        found: list[float] = []
        until = time.monotonic() + BUDGETS_S[codec]
        wanted = WARM_UP + rounds
        while len(found) < wanted:
            progress(f"atoll, {codec}", len(found), wanted)
            if time.monotonic() > until and len(found) >= WARM_UP + FEWEST:
                break
            at = len(found)
            found = await rig.until(
                lambda at=at: now if len(now := durations(rig)) > at else None,  # type: ignore[misc]
                f"round {at + 1} with {codec}",
            )
        progress(f"atoll, {codec}", wanted, wanted)
        return found[WARM_UP:wanted]


def _config(codec: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "bench",
            "target": {"rounds": 1_000_000},
            "data": {"block_sequences": 1},
            "model": MODEL,
            "inner": {"steps": 1, "batch_sequences": 1, "lr": 1e-5},
            "outer": {"delta_codec": codec, "update_codec": codec},
            "rounds": {"quorum": len(SITES)},
            "snapshots": {"every_versions": 1_000_000},
        }
    )


def durations(rig: Rig) -> list[float]:
    """Seconds of each round so far that had deltas of both sites and that both have trained on
    since."""
    cuts = {one.round: one for _, one in rig.of(RoundClosed)}
    blocks = {name: rig.of(BlockCompleted, f"site.{name}") for name in SITES}
    found = []
    for committed, one in rig.of(RoundCommitted):
        delivered = {cut.site: cut.delta[0] for cut in cuts[one.round].deltas}
        if set(delivered) != set(SITES):
            continue
        done, begun = [], []
        for site, delta in delivered.items():
            done += [rig.at(at) for at, _ in blocks[site] if at < delta][-1:]
            later = ((at, block) for at, block in blocks[site] if at > committed)
            begun += [rig.at(at) - block.seconds for at, block in later][:1]
        if len(begun) == len(SITES):
            found.append(max(begun) - max(done))
    return found
