"""The inner loop: whole blocks, as DiLoCo's sites train them between two outer steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from eventlog.inner import Inner
from sitehub.batches import Batches, batches_of_block
from sitehub.corpus import Corpus
from sitehub.evaluate import token_losses
from sitehub.layout import Between, Layout
from sitehub.model import ModelInvalid
from sitehub.optimizer import InnerOptimizer
from sitehub.schedule import learning_rate, step_progress

_RATE_S = 5.0  # training time over which the rate forgets


@dataclass(frozen=True, slots=True)
class BlockResult:
    """loss: mean nats per token over the block, before each step's update; not finite if any
    step's loss or gradient was not. seconds: of training, on this machine's clock. rate: of the
    last step. num_skipped: steps that changed nothing, for they were not finite."""

    loss: float
    steps: int
    tokens: int
    seconds: float
    rate: float
    num_skipped: int


class Meter:
    """What this process has trained since it began, and how fast: averages over training time
    alone, in which what lies t seconds back counts exp(-t / 5 s)."""

    def __init__(self) -> None:
        self.steps, self.tokens = 0, 0
        self.slowest_step_s = 0.0  # of the recent steps: forgotten as the averages are
        self._steps = self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """One step more."""
        self.steps += 1
        self.tokens += tokens
        decay = math.exp(-seconds / _RATE_S)
        self.slowest_step_s = max(seconds, self.slowest_step_s * decay)
        self._steps = self._steps * decay + 1
        self._tokens = self._tokens * decay + tokens
        self._seconds = self._seconds * decay + seconds

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    @property
    def step_s(self) -> float:
        return self._seconds / self._steps if self._steps else 0.0


class InnerLoop:
    """Trains the model's parameters in place, block by block; on each rank of a site the same."""

    def __init__(
        self,
        model: PreTrainedModel,
        corpus: Corpus,
        inner: Inner,
        block_sequences: int,
        layout: Layout | None = None,
    ) -> None:
        """`layout`: how the model lies on the site's ranks, if there are several; it is made of
        `model`. Raises ModelInvalid where the model can not do what `inner` asks for."""
        self.meter = Meter()
        self._corpus, self._inner, self._block_sequences = corpus, inner, block_sequences
        self._device = next(model.parameters()).device
        bf16 = inner.precision == "bf16"
        self._autocast = bf16 or (inner.precision == "auto" and self._device.type != "cpu")
        if inner.activation_checkpointing:
            _recompute_activations(model)
        self.layout = layout or Layout(model)
        module: Any = self.layout.module
        self._module: Any = torch.compile(module) if inner.compile else module
        self.model = model
        self.optimizer = InnerOptimizer(model, inner, self.layout)

    def reset(self) -> None:
        """Forget the optimizer's state, at every rank."""
        if self.layout.is_first:
            self.layout.order("reset")
        self.optimizer.reset()

    @property
    def keeps_state(self) -> bool:
        """Whether the inner optimizer goes on as it is from one version to the next."""
        return self._inner.on_version == "keep"

    def on_version(self) -> None:
        """A version was folded in: its state is kept, or forgotten, as configured."""
        if not self.keeps_state:
            self.reset()

    def train_block(
        self,
        block: int,
        progress: tuple[float, float],
        on_step: Callable[[Meter], None],
        between: Between = Between(),  # noqa: B008 - frozen
    ) -> BlockResult:
        """Train one whole block, the learning rate by the run's progress from its first to its
        last step. `on_step` is called after each. Raises DataInvalid, before the first step."""
        batches = self._batches(block)  # each is read while the one before it is trained
        nats, tokens, seconds, rate, num_skipped = 0.0, 0, 0.0, 0.0, 0
        self.layout.module.train()
        for step, (inputs, targets) in enumerate(batches):
            begun = time.perf_counter()
            rate = learning_rate(step_progress(*progress, step, len(batches)), self._inner)
            loss, waits = self._step(inputs, targets, rate, between)
            taken = time.perf_counter() - begun
            nats += loss * targets.numel()
            tokens += targets.numel()
            seconds += taken
            num_skipped += not math.isfinite(loss)
            self.meter.add(targets.numel(), taken)
            if waits:
                between.take()
            on_step(self.meter)
        return BlockResult(nats / tokens, len(batches), tokens, seconds, rate, num_skipped)

    def _batches(self, block: int) -> Batches:
        return batches_of_block(
            self._corpus, block, self._block_sequences, self._inner.batch_sequences
        )

    def _step(
        self, inputs: torch.Tensor, targets: torch.Tensor, rate: float, between: Between
    ) -> tuple[float, bool]:
        """One optimizer step; the loss before it, and whether something waits to be done after it.
        Where loss or gradient is not finite the parameters stay as they are, and the loss returned
        is not finite."""
        self.optimizer.zero_grad()
        num_rows = self._inner.batch_sequences // self._inner.accumulate
        nats = torch.zeros((), device=self._device)
        for start in range(0, len(inputs), num_rows):
            rows, weight = self.layout.share_of(start, min(start + num_rows, len(inputs)))
            is_last = start + num_rows >= len(inputs)
            with self.layout.passing(is_last):
                found = self._forward(inputs[rows], targets[rows]) * weight
                # ranks average their gradients, so each one's loss counts as often as there are
                (found * (self.layout.size / targets.numel())).backward()
            nats += found.detach()
        total, waits = self.layout.total((float(nats), float(between.waits())))
        loss, norm = total / targets.numel(), self.layout.clip(self._inner.clip_norm)
        if not math.isfinite(loss) or not math.isfinite(norm):
            return (loss if not math.isfinite(loss) else math.nan), bool(waits)
        self.optimizer.step(rate)
        return loss, bool(waits)

    def _forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Nats of all targets together."""
        inputs, targets = inputs.to(self._device), targets.to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            return token_losses(self._module, inputs, targets).sum()


def _recompute_activations(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise ModelInvalid(
            f"inner.activation_checkpointing: {model.config.model_type} has none; leave it out"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
