"""How a site's model lies on its ranks: here, on one.

`sitehub.ranks` has the layouts of several: DDP and FSDP2. The inner loop is written against this
class and is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.nn.utils import clip_grad_norm_

from sitehub.model import Parameters, parameters_of


class Layout:
    """One rank, which has the whole model. `local`: the parameters that are trained, as the anchor
    rule reads and changes them on the first rank; `module`: what runs forward."""

    rank, size = 0, 1

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = self.module = model
        self.local: Parameters = parameters_of(model)

    @property
    def is_first(self) -> bool:
        """Whether this rank talks to the hub and holds anchor, version and momentum."""
        return self.rank == 0

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
        """The sums of values over all ranks, at each of them."""
        return list(values)

    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to a norm; the norm that it had, of the whole model."""
        return float(clip_grad_norm_(self.model.parameters(), max_norm))

    def gather(self) -> None:
        """`local` of the first rank ← what was trained."""

    def spread(self) -> None:
        """What is trained ← `local` of the first rank, at every rank."""
