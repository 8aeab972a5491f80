"""The sites in `atoll bench round`: one process with their tensors, that does not train.

    python -m ops.bench.round_site ORDER.json

It does one order and prints what that took as one JSON object: "deliver" plays the sites one after
the other, each from the initial parameters (progress, delta, upload); "apply" takes updates as one
site does; "limit" times what no implementation can do without.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from eventlog.blobs import BlobStore
from eventlog.config import Outer, RunConfig
from ops.bench.resources import THREADS
from ops.bench.shapes import count
from outer.feedback import Feedback
from outer.merge import apply_update
from outer.norms import Norms
from outer.pseudo_gradient import Anchor, Progress
from outer.schedule import rule_of
from outer.versions import load_parameters
from sitehub import machine

PROGRESS = 1e-3  # of a parameter, by inner steps that are not taken: normal, as large as AdamW's
REPEATS = 3  # of what the limit is made of

Answer = dict[str, Any]


def main(argv: list[str]) -> int:
    order = json.loads(Path(argv[0]).read_text())
    machine.set_up(THREADS)
    answer = limit(order) if order["do"] == "limit" else asyncio.run(_with_blobs(order))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**answer, "peak_gb": peak_kb * 1024 / 1e9}))
    return 0


async def _with_blobs(order: Answer) -> Answer:
    config = RunConfig.model_validate(order["config"])
    folder = Path(order["folder"])
    async with await connect(order["broker"], name="sites") as connection:
        blobs = await JetStreamBlobs.open(connection, config.name)
        initial = folder / "initial"
        await blobs.get(order["initial"], initial)
        site = Site(config.outer, folder, load_parameters(initial))
        initial.unlink()
        work = deliver if order["do"] == "deliver" else apply
        answer: Answer = await work(site, blobs, folder, order)
        await blobs.close()
    return answer


class Site:
    """What a trainer's replica of the model is made of: θ and m, the anchor, the local parameters,
    and the residual of its codec."""

    def __init__(self, outer: Outer, folder: Path, theta: dict[str, Tensor]) -> None:
        self.outer, self.theta = outer, theta
        self.momentum = {name: torch.zeros_like(value) for name, value in theta.items()}
        self.local = {name: value.clone() for name, value in theta.items()}
        self.anchor = Anchor(theta)
        self.anchor.reserve(self.local)
        shapes = {name: value.shape for name, value in theta.items()}
        self.feedback = Feedback(folder / "feedback", shapes)

    def move(self, seed: int) -> None:
        """What inner steps would do to the local parameters, the same for the same seed."""
        chance = torch.Generator().manual_seed(seed)
        for value in self.local.values():
            value.sub_(torch.randn(value.shape, generator=chance).mul_(PROGRESS))

    def cut(self) -> Progress:
        """P ← local: a trainer stands still."""
        return self.anchor.publish(self.local)

    def encode(self, label: str, progress: Progress, path: Path) -> Norms:
        """The delta's file; may run beside training."""
        return self.feedback.encode(label, progress.piece, self.outer.delta_codec, path)

    def step(self, path: Path) -> str:
        """θ, m ← next, by an update's file; the digest of θ. May run beside training."""
        self.anchor.keep()
        return apply_update(self.theta, self.momentum, path, rule_of(self.outer, 0.0))

    def fold(self) -> None:
        """local ← θ + (local − P): a trainer stands still."""
        self.anchor.rebase(self.local, self.theta)


async def deliver(site: Site, blobs: BlobStore, folder: Path, order: Answer) -> Answer:
    """Each site's delta, encoded and stored."""
    deltas = []
    for number in range(order["sites"]):
        path = folder / f"delta-{number}"
        if number == 0:
            _warm_up(site, path)
        site.move(number)
        os.sync()  # a site writes a residual once a round, and the disk has long been done with it
        began = time.perf_counter()
        norms = site.encode(str(number), site.cut(), path)
        encoded = time.perf_counter()
        blob = await blobs.put(path)
        deltas.append(
            {
                "encode": encoded - began,
                "upload": time.perf_counter() - encoded,
                "blob": blob.digest,
                "num_bytes": blob.num_bytes,
                "norm": norms.norm,
                "max_abs": norms.max_abs,
            }
        )
        path.unlink()
        site.feedback.settle(str(number), merged=True)  # the next one has a residual to begin with
        site.anchor.restart(site.local, site.theta)
    return {"deltas": deltas}


def _warm_up(site: Site, path: Path) -> None:
    """As after a site's first rounds: there is a residual, and one before it to be written over."""
    for label in ("first", "second"):
        site.encode(label, site.cut(), path)
        site.feedback.settle(label, merged=True)
        site.anchor.restart(site.local, site.theta)
    path.unlink()


async def apply(site: Site, blobs: BlobStore, folder: Path, order: Answer) -> Answer:
    """Each version in turn, from its update, by a site that has delivered before."""
    versions = []
    for number, update in enumerate(order["updates"], start=1):
        path = folder / f"update-{number}"
        site.cut()
        began = time.perf_counter()
        await blobs.get(update, path)
        fetched = time.perf_counter()
        digest = site.step(path)
        site.fold()
        versions.append(
            {
                "download": fetched - began,
                "apply": time.perf_counter() - fetched,
                "digest": digest,
            }
        )
        path.unlink()
    return {"versions": versions}


def limit(order: Answer) -> Answer:
    """Seconds: to copy the path's bytes as files and hash them, to copy the fp32 model once in
    memory, to hash it once. The last two by as many threads as the rest may use."""
    files = [Path(order["folder"]) / name for name in ("bytes", "copy")]
    with files[0].open("wb") as file:
        for num_bytes in order["bytes"]:
            file.write(torch.randint(256, (num_bytes,), dtype=torch.uint8).numpy().data)
    num = count(order["model"])
    source, target = torch.ones(num), torch.ones(num)

    def through() -> None:
        shutil.copyfile(*files)
        with files[1].open("rb") as file:
            hashlib.file_digest(file, "sha256")

    shares = [share.numpy().data for share in source.chunk(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        return {
            "bytes": _timed(through),
            "copy": _timed(lambda: target.copy_(source)),
            "digest": _timed(lambda: list(pool.map(hashlib.sha256, shares))),
        }


def _timed(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
