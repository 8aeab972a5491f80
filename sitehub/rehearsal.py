"""A trainer that learns nothing: for simulations, in which everything but the learning is real.

The model is one vector, a number for each block of each epoch. To train a block subtracts 1 from
its number. So every delta, version and anchor shows of which blocks it is made, in fp32 without
any rounding: with η = 1 and μ = 0, after every commit each number of θ is minus the weight with
which its block was merged, and 0 where it was not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import torch

from eventlog.config import Outer
from outer import codecs
from outer.arithmetic import self_test
from outer.codecs import Norms
from outer.merge import apply_update
from outer.pseudo_gradient import Anchor, Progress
from outer.schedule import rule_of
from outer.tensorfile import write
from outer.versions import digest, load_parameters, load_version, save_parameters

NAME = "blocks"
LARGE = 1000.0  # times as large
Harm = Literal["nan", "form", "huge", "torn", "large"]


class Rehearsal:
    """One trainer's replica. `size`: numbers of the model."""

    def __init__(self, size: int, outer: Outer) -> None:
        self.version: int | None = None
        self._outer = outer
        self._local = {NAME: torch.zeros(size)}
        self._theta = {NAME: torch.zeros(size)}
        self._momentum = {NAME: torch.zeros(size)}
        self._anchor = Anchor(self._theta)

    def load(self, version: int, path: Path, kind: str, keep: bool = False) -> str:
        """local, P, θ ← a file's parameters, m ← its momentum; the digest of θ. With `keep`,
        undelivered progress stays on top."""
        if kind == "snapshot":
            _, self._theta, self._momentum = load_version(path)
        else:
            self._theta = load_parameters(path)
            self._momentum = {NAME: torch.zeros_like(self._theta[NAME])}
        self.version = version
        if keep:
            self._anchor.rebase(self._local, self._theta)
        else:
            self._anchor.restart(self._local, self._theta)
        return digest(self._theta)

    def train(self, number: int, share: float = 1.0) -> None:
        """local ← trained on a share of the block of this number; shares add up exactly."""
        self._local[NAME][number] -= share

    def cut(self) -> Progress:
        """P ← local; the progress until here, to be encoded before the next `step`."""
        return self._anchor.publish(self._local)

    def encode(self, progress: Progress, path: Path, codec: str, harm: Harm | None = None) -> Norms:
        """Write what was cut; its norms. `harm`: what is wrong with the file that is written,
        whatever the norms say."""
        delta = dict(progress)
        norms = codecs.measure(delta)
        if harm == "large":  # what is too large says so: nothing but the guard can see it
            norms = Norms(norms.norm * LARGE, norms.max_abs * LARGE, True)
        _write(delta, codec, path, harm)
        return norms

    def step(self, version: int, path: Path, progress: float) -> str:
        """θ, m ← the outer step of an update file, which brings the run to `progress`; the digest
        of θ. `fold` is to follow."""
        assert self.version is not None and version == self.version + 1, "the hub keeps the order"
        self._anchor.keep()
        return apply_update(self._theta, self._momentum, path, rule_of(self._outer, progress))

    def fold(self, version: int) -> None:
        """local ← θ + (local − P), P is θ."""
        self._anchor.rebase(self._local, self._theta)
        self.version = version

    def rebase(self, *, reset: bool) -> None:
        """After a refusal: undelivered progress is kept on top of θ; with `reset` nothing is."""
        if reset:
            self._anchor.restart(self._local, self._theta)
        else:
            self._anchor.rebase(self._local, self._theta)

    def discard(self) -> None:
        """local ← P: undelivered blocks were reclaimed."""
        self._anchor.discard(self._local)

    def progress(self) -> list[int]:
        """Numbers in which local differs from θ: the blocks whose training it stands on."""
        differs = self._local[NAME] != self._theta[NAME]
        return [int(number) for number in differs.nonzero().flatten()]

    def undelivered(self) -> list[int]:
        """Numbers in which local differs from the anchor: what the next delta would hold."""
        differs = self._local[NAME] != self._anchor.parameters[NAME]
        return [int(number) for number in differs.nonzero().flatten()]


def _write(delta: dict[str, torch.Tensor], codec: str, path: Path, harm: Harm | None) -> None:
    if harm == "torn":
        path.write_bytes(b"half of a file")
        return
    if harm == "nan":
        delta[NAME][0] = float("nan")
        write({f"values/{NAME}": delta[NAME]}, path, {"codec": codec, "format": codecs.FORMAT})
        return
    if harm == "huge":
        delta[NAME][0] = 3e38
    if harm == "large":
        delta = {NAME: delta[NAME] * LARGE}
    codecs.encode({"other": delta[NAME]} if harm == "form" else delta, codec, path)


def save_initial(size: int, path: Path) -> str:
    """Write version 0, all zeros; its digest."""
    parameters = {NAME: torch.zeros(size)}
    save_parameters(parameters, path)
    return digest(parameters)


class ClosedForm:
    """θ after exactly the named blocks were merged, each with its delta's weight."""

    def __init__(self, size: int) -> None:
        self._theta = {NAME: torch.zeros(size)}

    def merge(self, number: int, weight: float) -> None:
        """The block of this number is merged with this weight."""
        self._theta[NAME][number] = -torch.tensor(weight, dtype=torch.float32)

    def digest(self) -> str:
        """The digest that θ must have."""
        return digest(self._theta)


@cache
def arithmetic() -> tuple[dict[str, str], str]:
    """This machine's self-test: digests per operation, and of all."""
    found = self_test()
    return dict(found.operations), found.digest
