"""The inner optimizer: AdamW, or Muon for the matrices of layers with AdamW for the rest.

Decay is for what multiplies activations, not for gains and biases. Muon (Jordan 2024) makes a
matrix's momentum orthogonal; its step is scaled as Moonshot's (arXiv:2502.16982, section 2.2), so
that it has the size of AdamW's and one learning rate and decay serve both. Embeddings and the head
are tables of rows, which AdamW trains, as both sources have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eventlog.inner import Inner


class InnerOptimizer:
    """One or two optimizers of torch over a model's parameters, stepped as one."""

    def __init__(self, model: torch.nn.Module, inner: Inner) -> None:
        self._parameters = dict(model.named_parameters())
        self._inner = inner
        self._matrices = _matrices(model) if inner.optimizer == "muon" else set()
        self._parts = self._made()

    def reset(self) -> None:
        """Forget all state."""
        self._parts = self._made()

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """One step at a learning rate."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def state(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, what, value) of all state, the optimizer's own tensors; none of a parameter
        that was never stepped."""
        for part in self._parts:
            for name in self._of(part):
                for what, value in part.state.get(self._parameters[name], {}).items():
                    yield name, what, value

    def restore(self, name: str, what: str, value: Tensor) -> None:
        """Set one value of the state; it becomes the optimizer's own."""
        parameter = self._parameters[name]
        part = next(part for part in self._parts if name in self._of(part))
        part.state[parameter][what] = value

    def _of(self, part: torch.optim.Optimizer) -> list[str]:
        muon = isinstance(part, torch.optim.Muon)
        return [name for name in self._parameters if (name in self._matrices) == muon]

    def _made(self) -> list[torch.optim.Optimizer]:
        inner, named = self._inner, self._parameters
        rest = [value for name, value in named.items() if name not in self._matrices]
        groups: list[dict[str, Any]] = [
            {"params": [value for value in rest if value.dim() >= 2]},
            {"params": [value for value in rest if value.dim() < 2], "weight_decay": 0.0},
        ]
        parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=inner.lr,
                betas=(inner.beta1, inner.beta2),
                eps=inner.eps,
                weight_decay=inner.weight_decay,
                fused=True,
            )
        ]
        if self._matrices:
            muon = torch.optim.Muon(
                [named[name] for name in named if name in self._matrices],
                lr=inner.lr,
                weight_decay=inner.weight_decay,
                momentum=inner.muon_momentum,
                adjust_lr_fn="match_rms_adamw",
            )
            parts.append(muon)
        return parts


def _matrices(model: torch.nn.Module) -> set[str]:
    """Names of the matrices that are no table of rows: neither an embedding nor the head."""
    tables = {id(one.weight) for one in model.modules() if isinstance(one, torch.nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        tables.add(id(head.weight))
    named = model.named_parameters()
    return {name for name, value in named if value.dim() == 2 and id(value) not in tables}
