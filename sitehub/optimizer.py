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

from eventlog.errors import AtollError
from eventlog.inner import Inner
from sitehub.layout import Form, Layout

_OF_ADAMW, _OF_MUON = ("step", "exp_avg", "exp_avg_sq"), ("momentum_buffer",)


class StateUnfit(AtollError):
    """A saved state of an inner optimizer that this one cannot take up."""


class InnerOptimizer:
    """One or two optimizers of torch over a model's parameters, stepped as one."""

    def __init__(self, model: torch.nn.Module, inner: Inner, layout: Layout) -> None:
        self._layout = layout
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
        """One step at a learning rate; of it, AdamW beside Muon has its share."""
        for part in self._parts:
            beside = self._matrices and not isinstance(part, torch.optim.Muon)
            for group in part.param_groups:
                group["lr"] = rate * self._inner.adamw_share if beside else rate
            part.step()

    def state(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, what, value) of all that this rank holds, the optimizer's own tensors; none
        of a parameter that was never stepped."""
        for part in self._parts:
            for name in self._of(part):
                for what, value in part.state.get(self._parameters[name], {}).items():
                    yield name, what, value

    def whole_state(self) -> dict[str, Tensor]:
        """All of it, gathered from all ranks, on the CPU, by "parameter/what"; copies, which stay
        as they are while training goes on. Empty on other ranks than the first."""
        if self._layout.is_first:
            self._layout.order("state")
        found = {}
        for name, what, value in self.state():
            whole = self._layout.whole(value)
            if self._layout.is_first:
                found[f"{name}/{what}"] = whole.detach().to("cpu", copy=True)
        return found

    def restore(self, forms: dict[str, Form], values: dict[str, Tensor] | None = None) -> None:
        """Take up a `whole_state`, given at the first rank: every form at every rank. Raises
        StateUnfit, before anything is changed, where it is of another model or optimizer."""
        for key, (shape, _) in forms.items():
            name, _, what = key.rpartition("/")
            if name not in self._parameters or what not in self._whats(name):
                raise StateUnfit(f"{key} is no state of this model's inner optimizer")
            if shape not in ((), tuple(self._parameters[name].shape)):
                raise StateUnfit(f"{key} has shape {shape}, which its parameter has not")
        if self._layout.is_first:
            self._layout.order("restore", forms)
        for key, form in forms.items():
            name, _, what = key.rpartition("/")
            part = next(part for part in self._parts if name in self._of(part))
            value = None if values is None else values[key]
            part.state[self._parameters[name]][what] = self._layout.part(name, form, value)

    def _whats(self, name: str) -> tuple[str, ...]:
        return _OF_MUON if name in self._matrices else _OF_ADAMW

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
