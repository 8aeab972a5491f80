"""Several ranks of one site, which `torchrun` starts: the first leads, the others follow.

The first rank talks to the hub and holds anchor, version and momentum, as a trainer of one rank
does. Each other one has its part of the model and of the inner optimizer, and waits for orders:
all ranks then do the same, in the same order. "ddp": each has the whole model; "fsdp2": parameters,
gradients and inner state are cut into as many parts as there are ranks, and the first keeps the
whole parameters on its CPU besides, for the anchor rule.

A rank that dies takes the others with it: torchrun ends them, and the hub departs the incarnation.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from eventlog.errors import AtollError
from eventlog.inner import Inner
from sitehub.layout import Form, Layout
from sitehub.model import parameters_of

Sharding = Literal["ddp", "fsdp2"]

_FOR_EVER = timedelta(days=365)  # an idle site waits for its next order as long as it takes
_LOOK_S = 1.0


class RanksInvalid(AtollError):
    """The site's ranks cannot train this run's model so; the text says why."""


def join(device: torch.device) -> None:
    """Meet the other ranks. Those who follow end with the process that started them."""
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=_FOR_EVER)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


class RanksLayout(Layout):
    """The model on all ranks of the process group. Made on each of them from an equal model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._orders: Any = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self._device = next(model.parameters()).device

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of values over all ranks, in float64."""
        found = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(found, group=self._orders)
        return [float(value) for value in found]

    def order(self, what: str, *arguments: object) -> None:
        """From the first rank: the others do it as soon as they have done what came before."""
        dist.broadcast_object_list([(what, arguments)], src=0, group=self._orders)

    def next_order(self) -> tuple[str, tuple[Any, ...]]:
        """At every other rank: waits for it."""
        found: list[Any] = [None]
        dist.broadcast_object_list(found, src=0, group=self._orders)
        what, arguments = found[0]
        return what, arguments

    def gather(self) -> None:
        if self.is_first:
            self.order("gather")

    def spread(self) -> None:
        if self.is_first:
            self.order("spread")

    def part(self, name: str, form: Form, value: Tensor | None) -> Tensor:
        shape, dtype = form
        found = torch.empty(shape, dtype=dtype) if value is None else value
        dist.broadcast(found, src=0, group=self._orders)
        return found.to(self._device)


class Replicated(RanksLayout):
    """DDP: each rank has the whole model."""

    name = "ddp"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        of_gpu = [self._device.index] if self._device.type == "cuda" else None
        self._ddp = self.module = DistributedDataParallel(
            model, device_ids=of_gpu, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    @contextmanager
    def passing(self, is_last: bool) -> Iterator[None]:
        with nullcontext() if is_last else self._ddp.no_sync():
            yield

    def gather(self) -> None:
        """Nothing: the first rank has it all."""

    def spread(self) -> None:
        super().spread()
        for value in self.local.values():
            dist.broadcast(value, src=0)


class Sharded(RanksLayout):
    """FSDP2: each rank has its part of every parameter."""

    name = "fsdp2"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.local = {}
        if self.is_first:
            self.local = {name: value.cpu().clone() for name, value in parameters_of(model).items()}
        self._mesh = init_device_mesh(self._device.type, (self.size,))
        for layer in _layers(model):
            fully_shard(layer, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        self._parts = dict(sorted(model.named_parameters()))

    def clip(self, max_norm: float) -> float:
        norm = clip_grad_norm_(self.model.parameters(), max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    @torch.no_grad()
    def gather(self) -> None:
        super().gather()
        for name, value in self._parts.items():
            whole = self.whole(value)
            if self.is_first:
                self.local[name].copy_(whole)

    @torch.no_grad()
    def spread(self) -> None:
        super().spread()
        for name, value in self._parts.items():
            own: Any = value
            own.to_local().copy_(self._cut(own, self.local.get(name)).to_local())
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # else what an evaluation gathered is what the next step reads

    def whole(self, value: Tensor) -> Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def part(self, name: str, form: Form, value: Tensor | None) -> Tensor:
        own: Any = self._parts[name]
        same = form[0] == tuple(own.shape)
        return self._cut(own, value) if same else super().part(name, form, value)

    def _cut(self, like: DTensor, value: Tensor | None) -> DTensor:
        """This rank's part of the first rank's tensor."""
        if value is None:
            value = torch.empty(like.shape, dtype=like.dtype)
        return distribute_tensor(value.to(self._device), self._mesh, like.placements)


def layout_of(model: torch.nn.Module, sharding: Sharding, inner: Inner) -> RanksLayout:
    """The model as it lies on the ranks that torchrun has started. Raises RanksInvalid."""
    if (num := dist.get_world_size()) > inner.batch_sequences:
        raise RanksInvalid(
            f"{num} ranks share inner.batch_sequences = {inner.batch_sequences} sequences "
            "of a step; give the site fewer ranks, or a run of larger batches"
        )
    if sharding == "fsdp2" and inner.optimizer == "muon":
        raise RanksInvalid(
            'inner.optimizer = "muon" needs whole matrices, which "fsdp2" cuts; give --sharding ddp'
        )
    return Sharded(model) if sharding == "fsdp2" else Replicated(model)


def follow(layout: RanksLayout, does: dict[str, Callable[..., object]]) -> None:
    """At every rank but the first: carry out orders, until "go on" or "exit". An error that the
    first rank has too, and tells the hub, changes nothing here either."""
    own = {"gather": layout.gather, "spread": layout.spread}
    while True:
        what, arguments = layout.next_order()
        if what in ("go on", "exit"):
            return
        try:
            (own | does)[what](*arguments)
        except AtollError as error:
            print(f"rank {layout.rank}: {what}: {error}", flush=True)


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that repeat, which are sharded one by one; by the names that transformers gives
    those of which no part may be moved alone."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [one for one in model.modules() if type(one).__name__ in names]
