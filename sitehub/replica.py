"""One trainer's copy of the model: local parameters, anchor P, and the version (θ, m) it is on.

What each operation does to them is the anchor rule of `outer.pseudo_gradient`. θ, m and P are on
the CPU, where the outer step gives the same bits at every site; local is where training is. What a
trainer stands still for (`cut`, `fold`) is apart from what may run beside training, on another
thread (`encode`, `step`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from eventlog.config import Outer
from eventlog.errors import AtollError
from outer.feedback import Feedback
from outer.merge import apply_update
from outer.norms import Norms
from outer.pseudo_gradient import Anchor, Progress
from outer.schedule import rule_of
from outer.versions import digest, load_parameters, load_version
from sitehub.corpus import Corpus
from sitehub.evaluate import Evaluation, evaluate
from sitehub.layout import Between, together
from sitehub.model import Parameters, check_fits
from sitehub.training import BlockResult, InnerLoop, Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel


class NotLoaded(AtollError):
    """A command that needs a version came before one was loaded, or does not follow it."""


class FileTrouble(AtollError):
    """A file to read is not there, or one to write cannot be written."""


class Replica:
    """Before `load`, everything else raises NotLoaded. What raises an AtollError has changed
    nothing; after any other error the replica is not to be used."""

    def __init__(
        self,
        model: PreTrainedModel,
        corpus: Corpus,
        outer: Outer,
        loop: InnerLoop,
        residual: Path,
    ) -> None:
        """`residual`: the folder of what encoding has lost so far (`outer.feedback`)."""
        self.loop, self._model, self._corpus, self._outer = loop, model, corpus, outer
        self._local = loop.layout.local
        self._version: int | None = None
        self._theta: Parameters = {}
        self._momentum: Parameters = {}
        self._anchor = Anchor({})
        shapes = {name: tuple(value.shape) for name, value in self._local.items()}
        self.feedback = Feedback(residual, shapes)

    @property
    def version(self) -> int:
        """The version that θ is."""
        self._check_loaded()
        return self._version or 0

    @property
    def trains_meanwhile(self) -> bool:
        """Whether training goes on while a delta is on its way."""
        return self._outer.overlap != "none"

    def load(
        self, version: int, path: Path, kind: Literal["initial", "snapshot"], keep: bool = False
    ) -> str:
        """local, P, θ ← a file's parameters, m ← its momentum (zero for "initial"); the digest of
        θ. With `keep`, undelivered progress stays on top, as after `apply`. The inner optimizer's
        state is kept or not, as on any version. Raises SnapshotInvalid, ModelInvalid,
        FileTrouble."""
        _check_there(path)
        if kind == "snapshot":
            stored, theta, momentum = load_version(path)
            if stored != version:
                raise NotLoaded(f"{path.name} is version {stored}, not {version}")
        else:
            theta = load_parameters(path)
            momentum = {name: torch.zeros_like(value) for name, value in theta.items()}
        check_fits(self._model, theta)
        self._theta, self._momentum, self._version = theta, momentum, version
        if keep:
            self._rebase()
        else:
            self._restart()
        self._anchor.reserve(self._local)
        self.loop.on_version()
        return digest(theta)

    def train(
        self,
        block: int,
        progress: tuple[float, float],
        on_step: Callable[[Meter], None],
        between: Between = Between(),  # noqa: B008 - frozen
    ) -> BlockResult:
        """local ← trained on one block. Raises DataInvalid."""
        self._check_loaded()
        self.loop.layout.order("train", block, progress)
        return self.loop.train_block(block, progress, on_step, together(self.loop.layout, between))

    def cut(self) -> Progress:
        """P ← local; the progress until here, to be encoded before the next `step`."""
        self._check_loaded()
        self.loop.layout.gather()
        return self._anchor.publish(self._local)

    def encode(self, label: str, progress: Progress, path: Path, codec: str) -> Norms:
        """Write what was cut, and what encoding lost before; the norms of what is written. May run
        beside training. Raises NonFinite, FileTrouble; what was cut is no longer counted then, so
        the incarnation has to end."""
        device = next(iter(self._local.values())).device

        def values(name: str, piece: slice) -> torch.Tensor:
            return progress.piece(name, piece).to(device)

        try:
            return self.feedback.encode(label, values, codec, path, device)
        except OSError as error:
            raise FileTrouble(f"{path}: cannot be written: {error.strerror}") from error

    def settle(self, label: str, *, merged: bool) -> None:
        """The log has decided about a delta: what its encoding lost counts from here on, or never.
        On the thread of `encode`. Raises FileTrouble."""
        try:
            self.feedback.settle(label, merged=merged)
        except OSError as error:
            raise FileTrouble(f"the residual cannot be written: {error.strerror}") from error

    def step(self, version: int, path: Path, progress: float) -> str:
        """Take the outer step of an update file, which brings the run to `progress` in [0, 1]:
        θ, m ← next; the digest of θ. May run beside training, with `fold` to follow and nothing
        else of this class between the two. Raises DeltaInvalid, FileTrouble, and NotLoaded where
        `version` is not the next one."""
        if version != self.version + 1:
            raise NotLoaded(f"the trainer is at version {self.version}; {version} cannot follow")
        _check_there(path)
        self._anchor.keep()
        rule = rule_of(self._outer, progress)
        return apply_update(self._theta, self._momentum, path, rule)

    def fold(self, version: int) -> None:
        """After its `step`, between two steps of training: local ← θ + (local − P), P is θ."""
        self._rebase()
        self._version = version
        self.loop.on_version()

    def rebase(self, *, reset: bool) -> None:
        """After a refusal: undelivered progress is kept on top of θ; with `reset` nothing is, and
        the inner optimizer begins anew."""
        self._check_loaded()
        if reset:
            self._restart()
            self.loop.reset()
        else:
            self._rebase()

    def discard(self) -> None:
        """local ← P: undelivered blocks were reclaimed."""
        self._check_loaded()
        self._anchor.discard(self._local)
        self.loop.layout.spread()

    def evaluate(self, max_tokens: int | None) -> Evaluation:
        """θ, not local, on held-out text."""
        self._check_loaded()
        with self._holding(self._theta):
            self.loop.layout.order("evaluate", max_tokens)
            return evaluate(self._model, self._corpus, max_tokens)

    def _rebase(self) -> None:
        self.loop.layout.gather()
        self._anchor.rebase(self._local, self._theta)
        self.loop.layout.spread()

    def _restart(self) -> None:
        self._anchor.restart(self._local, self._theta)
        self.loop.layout.spread()

    def _check_loaded(self) -> None:
        if self._version is None:
            raise NotLoaded("the trainer holds no version yet; it has to load one first")

    @contextmanager
    def _holding(self, parameters: Parameters) -> Iterator[None]:
        """The model with other parameters for a while."""
        self.loop.layout.gather()
        local = {name: value.clone() for name, value in self._local.items()}
        self._hold(parameters)
        try:
            yield
        finally:
            self._hold(local)

    def _hold(self, parameters: Parameters) -> None:
        for name, value in self._local.items():
            value.copy_(parameters[name])
        self.loop.layout.spread()


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise FileTrouble(f"{path}: no such file")
