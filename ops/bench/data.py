"""`atoll bench data`: what a build makes of the tokenizer's own rate, and the memory it takes.

The text is English (`ops.bench.english`), as JSON Lines; the tokenizer is trained on it once. Build
and bare tokenizer take turns: the build reads, checks, digests, packs and joins, in as many
processes as there are cores; the tokenizer encodes the same texts, which lie in memory, on as many
threads.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ops.bench import english
from ops.bench.measure import Measure, Progress, Report, at_least, at_most, measured
from ops.bench.resources import peak_gb
from ops.bench.rig import BenchFailed

VOCAB = 16_384
LARGER = 4  # times the text, for which a build runs half a minute; memory is compared to it once
_BATCH = 512  # texts that the bare tokenizer is given together
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Built:
    """A build in processes of its own."""

    seconds: float
    num_tokens: int
    peak_gb: float  # the peaks of all its processes, added up


def run(quick: bool, progress: Progress) -> Report:
    """See `ops.commands.bench`."""
    num_runs, subset, vocab = (1, 80, 1024) if quick else (5, 1, VOCAB)
    folder = Path(tempfile.mkdtemp(prefix="atoll-bench-"))
    try:
        progress("writing the text", 0, num_runs + 2)
        text = folder / "english.jsonl"
        english.write(text, subset)
        tokenizer, texts = _trained(text, folder, vocab), _copies(text)
        builds, bare = [], []
        for number in range(num_runs):
            progress("building, and encoding alone", 1 + number, num_runs + 2)
            builds.append(_build(texts, tokenizer, folder / "data"))
            bare.append(_bare(text, tokenizer))
        progress(f"building 1/{LARGER} of it", num_runs + 1, num_runs + 2)
        smaller = _build([text], tokenizer, folder / "data")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Report(
        "data", _measures(builds, bare, smaller), num_runs, _notes(builds, bare, smaller, vocab)
    )


def _measures(builds: list[Built], bare: list[float], smaller: Built) -> tuple[Measure, ...]:
    return (
        measured(
            "build",
            [one.num_tokens / one.seconds for one in builds],
            "tokens/s",
            against="the tokenizer's batch rate on the same cores",
            against_values=bare,
            target=at_least(0.8, of="ratio"),
        ),
        measured(
            "memory",
            [one.peak_gb for one in builds],
            "GB",
            against=f"a corpus of 1/{LARGER} of that",
            against_values=[smaller.peak_gb],
            target=at_most(1.1, of="ratio"),
        ),
    )


def _notes(builds: list[Built], bare: list[float], smaller: Built, vocab: int) -> tuple[str, ...]:
    pairs = zip(builds, bare, strict=True)
    ratios = ", ".join(f"{one.num_tokens / one.seconds / rate:.3f}" for one, rate in pairs)
    short = smaller.num_tokens / smaller.seconds / statistics.median(bare)
    return (
        f"documentation in botocore {english.version()}, {LARGER} times over: "
        f"{builds[0].num_tokens:,} tokens of a vocabulary of {vocab:,}",
        f"build / bare, run by run: {ratios}; once, of the text once: {short:.3f}",
        "a build is a command of its own: its start, imports and last fsync are in its time",
    )


def _trained(text: Path, folder: Path, vocab: int) -> Path:
    from sitehub import tokenizer as bpe

    path = folder / "tokenizer.json"
    path.write_bytes(bpe.to_bytes(bpe.train(_texts(text), vocab)))
    return path


def _texts(path: Path) -> list[str]:
    with path.open() as file:
        return [json.loads(line)["text"] for line in file]


def _copies(text: Path) -> list[Path]:
    """The same text under further names."""
    paths = [text]
    for number in range(1, LARGER):
        paths.append(text.with_name(f"copy-{number}.jsonl"))
        shutil.copy(text, paths[-1])
    return paths


def _build(texts: list[Path], tokenizer: Path, out: Path) -> Built:
    """Build, and look at its processes' memory now and then. Raises BenchFailed."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "ops", "data", "build", *map(str, texts), str(out), "--json"]
    began, peaks = time.monotonic(), dict[int, float]()
    with subprocess.Popen(
        [*command, "--tokenizer", str(tokenizer), "--sequence-tokens", "2048"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            for pid in (process.pid, *_children(process.pid)):
                peaks[pid] = max(peaks.get(pid, 0.0), peak_gb(pid))
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - began
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise BenchFailed(f"atoll data build ended with code {process.returncode}")
    found = json.loads(said)
    num_tokens = sum(found[split]["num_tokens"] for split in ("training", "heldout"))
    return Built(seconds, num_tokens, sum(peaks.values()))


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _bare(text: Path, tokenizer: Path) -> float:
    """Tokens a second of the tokenizer alone, in a process of its own."""
    program = (
        "import sys, time; from pathlib import Path; from ops.bench.data import encode_all; "
        "print(encode_all(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(text), str(tokenizer)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "RAYON_NUM_THREADS"},
    )
    return float(done.stdout)


def encode_all(text: Path, tokenizer: Path) -> float:
    """Tokens a second, of encoding what was read before."""
    from sitehub import tokenizer as bpe

    texts, loaded = _texts(text), bpe.load(tokenizer)
    loaded.encode_batch_fast(texts[:2], add_special_tokens=False)  # starts its threads
    began, num_tokens = time.monotonic(), 0
    for start in range(0, len(texts), _BATCH):
        found = loaded.encode_batch_fast(texts[start : start + _BATCH], add_special_tokens=False)
        num_tokens += sum(map(len, found))
    return num_tokens / (time.monotonic() - began)
