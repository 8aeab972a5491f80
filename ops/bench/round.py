"""`round`: a whole outer round at real size, phase by phase, and the memory of each process.

Broker and coordinator are those of a run. The sites take turns in one process of their own, which
has its tensors before the coordinator comes and after it has gone: together they would need more
memory than a small machine has. They train nothing; what happens between inner steps is the code
of a real site on a real model.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from eventlog.config import RunConfig
from eventlog.events import RunCreated
from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.bench.resources import THREADS, peak_gb, quiet
from ops.bench.rig import BenchFailed, Rig, rigged
from ops.bench.scripted import Scripted
from ops.bench.shapes import MODELS, count
from sitehub.build import Options
from sitehub.spawn import WAITING

ROUNDS = 2  # of a run: in the first one momentum and residual are still zero
CODECS = ("4-bit", "top-k")
PUBLISHED_S, AT_MOST_S = 110.0, 30.0  # a round's exchange as published, and the target
MAX_4_BIT_GB, MAX_TOP_K_MB = 0.31, 17
GB, MB = 1e9, 1e6
_COPIES = 6  # of the fp32 model: encode one, merge two, decode one, apply two

PHASES = {
    "encode": "a site's delta: subtract, measure, encode, write",
    "upload": "a site's delta into the broker",
    "judge": "the coordinator fetches the last delta, decodes and measures it, closes the round",
    "merge": "the coordinator combines the deltas, encodes, takes its step, makes three digests",
    "update": "the update into the broker, and the commit",
    "download": "the update to a site",
    "apply": "a site decodes the update, takes its step, re-anchors, makes its digest",
}


@dataclass(slots=True)
class Found:
    """Of one codec. `phases`: seconds of each time it was done; `bytes`: the largest delta, and
    the largest update; `peaks`: GB by process."""

    phases: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})
    bytes: tuple[int, int] = (0, 0)
    peaks: dict[str, float] = field(default_factory=dict)

    def critical_s(self) -> float:
        """One site's way through a round: medians of all phases, one after the other."""
        return sum(median(self.phases[name]) for name in PHASES)


def run(
    quick: bool, progress: Progress, params: str | None = None, sites: int | None = None
) -> Report:
    """`params`: one of MODELS; `sites`: how many deliver. Raises BenchFailed."""
    name = params or ("qwen3-50m" if quick else "qwen3-0.6b")
    found = {codec: asyncio.run(one_codec(codec, name, sites or 3, progress)) for codec in CODECS}
    limits = _limits(name, found[CODECS[0]], progress)
    return Report("round", measures(found, limits, count(MODELS[name])), ROUNDS, notes(name))


def measures(
    found: dict[str, Found], limits: dict[str, float], num_parameters: int
) -> tuple[Measure, ...]:
    """`limits`: seconds of "bytes", one "copy", one "digest"."""
    limit_s = limits["bytes"] + _COPIES * limits["copy"] + limits["digest"]
    first, second = (found[codec] for codec in CODECS)
    critical_s = first.critical_s()
    lines = [
        measured("4-bit bytes", [max(first.bytes) / GB], "GB", target=at_most(MAX_4_BIT_GB)),
        measured("top-k bytes", [max(second.bytes) / MB], "MB", target=at_most(MAX_TOP_K_MB)),
        measured(
            "critical path",
            [critical_s],
            "s",
            against="its bytes copied and hashed, six copies of the model, one digest",
            against_values=limit_s,
            target=at_most(4, "ratio"),
        ),
        measured(
            "critical path seconds",
            [critical_s],
            "s",
            against="the published exchange and checkpoint",
            against_values=PUBLISHED_S,
            target=at_most(AT_MOST_S),
        ),
    ]
    for codec, one in found.items():
        lines += [measured(f"{codec} {name}", one.phases[name], "s") for name in PHASES]
        for process, gb in one.peaks.items():
            most = at_most(4, "ratio") if process == "coordinator" else None
            lines.append(
                measured(
                    f"{codec} memory, {process}",
                    [gb],
                    "GB",
                    against="the fp32 model",
                    against_values=4 * num_parameters / GB,
                    target=most,
                )
            )
    return tuple(lines)


def notes(name: str) -> tuple[str, ...]:
    """What one has to know to read the figures."""
    return (
        f"{count(MODELS[name]):,} parameters ({name}); {THREADS} threads for sites, coordinator "
        f"and limit; {ROUNDS} rounds of a run for each codec, both ways; no snapshots meanwhile",
        "the sites take turns in one process, and it and the coordinator never run together; the "
        "second round delivers the first one's deltas again; one site applies the updates; a site "
        "has encoded and delivered before: it has a residual, and memory for its anchor, and "
        "the disk has nothing left to write as it begins",
        *(f"{phase}: {what}" for phase, what in PHASES.items()),
    )


# -- a run of one codec ---------------------------------------------------------------------------


async def one_codec(codec: str, name: str, num_sites: int, progress: Progress) -> Found:
    """A run of ROUNDS rounds of a model of MODELS. Raises BenchFailed."""
    found, parts = Found(), 4
    progress(f"{codec}: founding", 0, parts)
    async with rigged(_config(codec, name, num_sites), _OPTIONS, THREADS) as rig:
        progress(f"{codec}: the sites encode and upload", 1, parts)
        one = (await rig.until(lambda: rig.of(RunCreated), "the run"))[0][1]
        delivered = await _sites(rig, "deliver", initial=one.parameters_blob, sites=num_sites)
        deltas = delivered["deltas"]
        for phase in ("encode", "upload"):
            found.phases[phase] = [delta.pop(phase) for delta in deltas]
        progress(f"{codec}: the coordinator merges", 2, parts)
        rig.coordinate("coordinator")
        committed = await _merge(rig, codec, deltas, found)
        found.peaks = {
            "coordinator": peak_gb(rig.crew.running["coordinator"].pid),
            "broker": peak_gb(rig.server.pid),
        }
        rig.crew.kill("coordinator")
        progress(f"{codec}: a site applies", 3, parts)
        updates = [version.update_blob for version in committed]
        applied = await _sites(rig, "apply", initial=one.parameters_blob, updates=updates)
        for version, said in zip(committed, applied["versions"], strict=True):
            if said["digest"] != version.parameters_digest:
                raise BenchFailed(f"version {version.version} differs at the site")
            for phase in ("download", "apply"):
                found.phases[phase].append(said[phase])
        found.peaks["site"] = max(delivered["peak_gb"], applied["peak_gb"])
        largest = max(delta["num_bytes"] for delta in deltas)
        found.bytes = (largest, max(version.update_bytes for version in committed))
    progress(f"{codec}: a site applies", parts, parts)
    return found


async def _merge(rig: Rig, codec: str, deltas: list[dict[str, Any]], found: Found) -> list[Any]:
    """The coordinator's part; each round's commit."""
    pid = rig.crew.running["coordinator"].pid
    sites, committed = Scripted(rig, len(deltas)), []
    await sites.join()
    for version in range(ROUNDS):
        blocks = await sites.train()
        last = 0
        for number, (held, delta) in enumerate(zip(blocks.values(), deltas, strict=True)):
            await quiet(pid)  # it has recovered, and judged what came before: as in a real round
            last = await sites.publish(
                number, held, {**delta, "codec": codec, "base_version": version}
            )
        round_ = await sites.committed(version + 1, last)
        said, closed = round_.said, rig.at(round_.closed)
        committed.append(said)
        merge_s = said.seconds["merge"]
        found.phases["judge"].append(closed - rig.at(last))
        found.phases["merge"].append(merge_s)
        found.phases["update"].append(rig.at(round_.committed) - closed - merge_s)
        await sites.hold(version + 1, said.parameters_digest)
    return committed


_OPTIONS = Options(8, vocab_size=512, subset=40)


def _config(codec: str, name: str, num_sites: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "bench",
            "lease_s": 3600,  # the sites are scripts: they need no watching
            "target": {"rounds": 1_000_000},
            "data": {"block_sequences": 1},
            "model": MODELS[name],
            "inner": {"steps": 1, "batch_sequences": 1},
            "outer": {"delta_codec": codec, "update_codec": codec},
            "rounds": {"quorum": num_sites, "deadline_s": 86_400},
            "snapshots": {"every_versions": 1_000_000},
        }
    )


async def _sites(rig: Rig, do: str, **more: Any) -> dict[str, Any]:
    """What the sites' process answers to an order."""
    order = {
        "do": do,
        "config": rig.config.model_dump(mode="json"),
        "folder": str(rig.folder),
        "broker": rig.server.url,
        **more,
    }
    return await asyncio.to_thread(ask, rig.folder, order)


def ask(
    folder: Path, order: dict[str, Any], module: str = "ops.bench.round_site"
) -> dict[str, Any]:
    """What a process of THREADS threads answers to an order. Raises BenchFailed."""
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    command = [sys.executable, "-m", module, str(path)]
    environment = {**WAITING, **os.environ, "OMP_NUM_THREADS": str(THREADS)}  # as of a trainer
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BenchFailed(f"{module} ended with code {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _limits(name: str, found: Found, progress: Progress) -> dict[str, float]:
    """What the critical path cannot do without, timed on its own."""
    progress("the limit", 0, 1)
    with TemporaryDirectory(prefix="atoll-bench-") as folder:
        order = {"do": "limit", "folder": folder, "model": MODELS[name], "bytes": found.bytes}
        answer = ask(Path(folder), order)
    progress("the limit", 1, 1)
    return answer
