"""A trainer in `atoll bench overhead`: training on one thread, the exchange beside it on another.

    python -m ops.bench.overhead_site ORDER.json

The exchange is a site's, on a model of its own; what trains is a small one, so that both fit into
the memory of a small machine. It prints what each round took as one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch

from eventlog.config import Outer
from ops.bench.resources import THREADS
from ops.bench.round_site import PROGRESS, Site
from ops.bench.shapes import shapes_of
from sitehub import machine
from sitehub.beside import Beside, Rest
from sitehub.evaluate import token_losses
from sitehub.model import build_model

_SPREAD = 0.02  # of random parameters
_WARM_UP = 3  # steps

Seconds = dict[str, float]
T = TypeVar("T")


def main(argv: list[str]) -> int:
    order = json.loads(Path(argv[0]).read_text())
    machine.set_up(THREADS)
    rounds = measure(order)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"rounds": rounds, "peak_gb": peak_kb * 1024 / 1e9}))
    return 0


def measure(order: dict[str, Any]) -> list[Seconds]:
    """Of each round, seconds: "cut" and "fold", in which training stands still; "encode" and
    "apply", beside it; "step alone" and "step beside" them, a mean of training's steps."""
    folder, training = Path(order["folder"]), Training(order["training"])
    chance = torch.Generator().manual_seed(1)
    theta = {
        name: torch.randn(shape, generator=chance).mul_(_SPREAD)
        for name, shape in shapes_of(order["model"]).items()
    }
    outer = Outer(delta_codec=order["codec"], update_codec=order["codec"], overlap="delayed")
    trainer = Trainer(Site(outer, folder, theta), training, folder / "delta")
    training.for_steps(_WARM_UP)
    return [trainer.round(number, order["alone_s"]) for number in range(order["rounds"])]


class Training:
    """Inner steps of a model on sequences of random tokens, always the same."""

    def __init__(self, table: dict[str, Any]) -> None:
        """`table`: a `model` table, with "sequences" and "tokens" of a batch besides."""
        table = dict(table)
        sequences, tokens = table.pop("sequences"), table.pop("tokens")
        self._model = build_model(table, table["vocab_size"], 1, tokens)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=True)
        chance = torch.Generator().manual_seed(2)
        batch = torch.randint(table["vocab_size"], (sequences, tokens + 1), generator=chance)
        self._inputs, self._targets = batch[:, :-1], batch[:, 1:]

    def step(self) -> float:
        """One step; the seconds that it took."""
        begun = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        token_losses(self._model, self._inputs, self._targets).mean().backward()
        self._optimizer.step()
        return time.perf_counter() - begun

    def for_steps(self, num: int) -> None:
        for _ in range(num):
            self.step()

    def mean_s(self, until: Callable[[], bool]) -> float:
        """Steps, at least one, until something holds after one of them; a step's mean seconds."""
        seconds = [self.step()]
        while not until():
            seconds.append(self.step())
        return fmean(seconds)


class Trainer:
    """A site's rounds with overlap, as `sitehub.commands` orders them. The update of a round is
    its own delta: nobody else's is there, and it is as large."""

    def __init__(self, site: Site, training: Training, path: Path) -> None:
        self._site, self._training, self._path = site, training, path
        self._error: BaseException | None = None
        self._beside = Beside(lambda: None, self._broken)

    def round(self, number: int, alone_s: float) -> Seconds:
        """One round, after training alone for a while."""
        site, label, found = self._site, str(number), Seconds()
        end = time.perf_counter() + alone_s
        found["step alone"] = self._training.mean_s(lambda: time.perf_counter() >= end)
        for value in site.local.values():
            value.mul_(1 - PROGRESS)  # inner steps that are not taken
        progress = _timed(found, "cut", site.cut)

        def encode() -> None:
            _timed(found, "encode", lambda: site.encode(label, progress, self._path))

        def apply() -> Rest:
            site.feedback.settle(label, merged=True)
            _timed(found, "apply", lambda: site.step(self._path))
            return lambda: _timed(found, "fold", site.fold)

        def folded() -> bool:
            self._beside.finish()
            if self._error is not None:
                raise self._error
            return "fold" in found

        self._beside.start(encode)
        self._beside.start(apply)
        found["step beside"] = self._training.mean_s(folded)
        return found

    def _broken(self, error: BaseException) -> None:
        self._error = error


def _timed(found: Seconds, name: str, work: Callable[[], T]) -> T:
    begun = time.perf_counter()
    result = work()
    found[name] = time.perf_counter() - begun
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
