"""How a site's model lies on its ranks: here, on one.

`sitehub.ranks` has the layouts of several: DDP and FSDP2. Inner loop and replica are written
against this class and are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from sitehub.model import Parameters, parameters_of

Form = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class Between:
    """What is done between two steps of a block: `take`, where `waits` says so. With several ranks
    the first one's `waits` counts, and all of them take."""

    waits: Callable[[], bool] = lambda: False
    take: Callable[[], None] = lambda: None


class Layout:
    """One rank, which has the whole model. `local`: the parameters that are trained, as the anchor
    rule reads and changes them on the first rank; `module`: what runs forward."""

    rank, size, name = 0, 1, "one rank"

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = self.module = model
        self.local: Parameters = parameters_of(model)

    @property
    def is_first(self) -> bool:
        """Whether this rank talks to the hub and holds anchor, version and momentum."""
        return self.rank == 0

    # -- of every step, at every rank --------------------------------------------------------------

    def share_of(self, start: int, end: int) -> tuple[slice, float]:
        """This rank's rows of a batch's rows start..end, and their weight: 0 for a row that it
        takes because there is none for it."""
        num, rank, size = end - start, self.rank, self.size
        first, last = start + num * rank // size, start + num * (rank + 1) // size
        return (slice(first, last), 1.0) if last > first else (slice(start, start + 1), 0.0)

    @contextmanager
    def passing(self, is_last: bool) -> Iterator[None]:
        """One pass forward and backward; gradients are exchanged in a step's last at the latest."""
        yield

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of values over all ranks."""
        return list(values)

    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to a norm; the norm that it had, of the whole model."""
        return float(clip_grad_norm_(self.model.parameters(), max_norm))

    # -- from the first rank, which the others follow ----------------------------------------------

    def order(self, what: str, *arguments: object) -> None:
        """Have the other ranks do something too."""

    def gather(self) -> None:
        """`local` ← what was trained."""

    def spread(self) -> None:
        """What is trained ← `local`, at every rank."""

    def whole(self, value: Tensor) -> Tensor:
        """All of a tensor of the inner optimizer, at every rank."""
        return value

    def part(self, name: str, form: Form, value: Tensor | None) -> Tensor:
        """What this rank's inner optimizer holds of a tensor that belongs to the parameter of that
        name: `value`, on the CPU, is given at the first rank, its shape and type everywhere."""
        assert value is not None, "this rank is the first"
        return value.to(self.local[name].device)


def together(layout: Layout, between: Between) -> Between:
    """What the first rank does between two steps, with the others following meanwhile."""

    def take() -> None:
        between.take()
        layout.order("go on")

    return Between(between.waits, take)
