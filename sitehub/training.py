"""The inner loop: AdamW over whole blocks, as DiLoCo's sites run it between two outer steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from eventlog.config import Inner
from sitehub.batches import Batches, batches_of_block
from sitehub.corpus import Corpus
from sitehub.evaluate import token_losses
from sitehub.schedule import learning_rate, step_progress

_RATE_S = 5.0  # training time over which the rate forgets


@dataclass(frozen=True, slots=True)
class BlockResult:
    """loss: mean nats per token over the block, before each step's update; not finite if any
    step's loss or gradient was not. seconds: of training, on this machine's clock."""

    loss: float
    steps: int
    tokens: int
    seconds: float


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
    """Trains the model's parameters in place, block by block."""

    def __init__(
        self, model: PreTrainedModel, corpus: Corpus, inner: Inner, block_sequences: int
    ) -> None:
        self.meter = Meter()
        self._model, self._corpus, self._inner = model, corpus, inner
        self._block_sequences = block_sequences
        self._device = next(model.parameters()).device
        self.reset()

    def reset(self) -> None:
        """Forget the optimizer's state."""
        parameters = list(self._model.parameters())
        groups: list[dict[str, Any]] = [  # decay what multiplies activations, not gains and biases
            {"params": [p for p in parameters if p.dim() >= 2]},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=self._inner.lr,
            betas=(self._inner.beta1, self._inner.beta2),
            eps=self._inner.eps,
            weight_decay=self._inner.weight_decay,
            fused=True,
        )

    def train_block(
        self, block: int, progress: tuple[float, float], on_step: Callable[[Meter], None]
    ) -> BlockResult:
        """Train one whole block, the learning rate by the run's progress from its first to its
        last step. `on_step` is called after each. Raises DataInvalid, before the first step."""
        batches = self._batches(block)  # each is read while the one before it is trained
        nats, tokens, seconds = 0.0, 0, 0.0
        self._model.train()
        for step, (inputs, targets) in enumerate(batches):
            begun = time.perf_counter()
            rate = learning_rate(step_progress(*progress, step, len(batches)), self._inner)
            loss = self._step(inputs.to(self._device), targets.to(self._device), rate)
            taken = time.perf_counter() - begun
            nats += loss * targets.numel()
            tokens += targets.numel()
            seconds += taken
            self.meter.add(targets.numel(), taken)
            on_step(self.meter)
        return BlockResult(nats / tokens, len(batches), tokens, seconds)

    def _batches(self, block: int) -> Batches:
        return batches_of_block(
            self._corpus, block, self._block_sequences, self._inner.batch_sequences
        )

    def _step(self, inputs: torch.Tensor, targets: torch.Tensor, rate: float) -> float:
        """One optimizer step; the loss before it. Where loss or gradient is not finite the
        parameters stay as they are, and the loss returned is not finite."""
        self._optimizer.zero_grad(set_to_none=True)
        on_accelerator = self._device.type != "cpu"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=on_accelerator):
            loss = token_losses(self._model, inputs, targets).mean()
        value = float(loss.detach())
        if not math.isfinite(value):
            return value
        loss.backward()
        norm = clip_grad_norm_(self._model.parameters(), self._inner.clip_norm)
        if not math.isfinite(float(norm)):
            return math.nan
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return value
