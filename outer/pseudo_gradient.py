"""The anchor rule: what a trainer delivers, and how it goes on, so that nothing counts twice.

A trainer keeps an anchor P beside its local parameters. P − local is at every block boundary the
progress of exactly the completed, undelivered blocks: the pseudo-gradient. Publishing moves the
anchor to the local parameters; a new version, or a refusal, moves both to the new parameters and
keeps what lies between them.

A trainer stands still while its parameters are copied or moved, so each operation here passes once
over the memory, in pieces that stay in the cache. And P has memory of its own only from a
publication to the next version: before and after, P is the version's own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from outer.pieces import flat

# Below this number of elements an operation of torch runs on the thread that calls it, so pieces
# are shared out to as many threads as torch may use, and each fits a core's cache.
PIECE = 1 << 15
_DEVICE_PIECE = 1 << 24  # on an accelerator: large enough to be worth a transfer


class Progress(Mapping[str, Tensor]):
    """What was published: P before it minus P after it, by name in sorted order, each tensor
    computed when it is asked for. To be read before the version that P was on is changed."""

    def __init__(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        self._before, self._after = before, after

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        return torch.sub(self._before[name], self._after[name])

    def piece(self, name: str, piece: slice) -> Tensor:
        """Some of a tensor's elements (flat, row-major), in memory of their own."""
        rows = (flat(one[name])[piece] for one in (self._before, self._after))
        return torch.from_numpy(np.subtract(*rows))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._before))

    def __len__(self) -> int:
        return len(self._before)


class Anchor:
    """The anchor P of one trainer, on the CPU.

    `local` is always the trainer's own mapping of names to fp32 parameters, on any device; it is
    changed in place and only where said. Differences are rounded to fp32: where they are exact, the
    rule is exact.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Anchor a trainer at these parameters, fp32 on the CPU: they are not copied, and whoever
        changes them says so before (`keep`)."""
        self._anchor = parameters
        self._own = False  # whether P has memory of its own
        self._spare: dict[str, Tensor] | None = None  # for the next P that needs some

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """P itself, to look at."""
        return self._anchor

    def reserve(self, local: Mapping[str, Tensor]) -> None:
        """Have the memory for a P of its own now, so that the first publication does not wait for
        the system to find it."""
        if not self._own:
            self._spare = self._memory(local)

    @torch.no_grad()
    def keep(self) -> None:
        """The parameters that P is will be changed: P gets memory of its own, and stays. Moves
        nothing that a trainer uses, so it may go on meanwhile."""
        if not self._own:
            self._take(_copied(self._anchor, self._memory(self._anchor)))

    @torch.no_grad()
    def publish(self, local: Mapping[str, Tensor]) -> Progress:
        """P ← local; what lies between the old P and the new one is delivered, and is not given
        again. `local` is read once; the progress itself is computed as it is read."""
        before = self._anchor
        self._take(_copied(local, self._memory(local)))
        return Progress(before, self._anchor)

    @torch.no_grad()
    def rebase(self, local: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
        """local ← new + (local − P), P is new: on a new version, or after a refusal (then `new`
        holds nothing of what was refused). Undelivered progress is kept, all else is as in `new`.
        """

        def move(piece: Tensor, anchor: Tensor, target: Tensor) -> None:
            piece.sub_(_beside(anchor, piece)).add_(_beside(target, piece))

        _in_pieces(move, local, self._anchor, new)
        self._stand_on(new)

    @torch.no_grad()
    def discard(self, local: Mapping[str, Tensor]) -> None:
        """local ← P: the undelivered progress is given up (its blocks were reclaimed)."""
        _in_pieces(_copy, local, self._anchor)

    @torch.no_grad()
    def restart(self, local: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
        """local ← new, P is new: after a refusal for non-finite or outlying values, nothing is
        kept."""
        _in_pieces(_copy, local, new)
        self._stand_on(new)

    def _stand_on(self, new: Mapping[str, Tensor]) -> None:
        if self._own:
            self._spare = dict(self._anchor)
        self._anchor, self._own = new, False

    def _take(self, memory: dict[str, Tensor]) -> None:
        self._anchor, self._own = memory, True

    def _memory(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Spare memory, kept from one publication to the next, and written to, so that it is
        really there; pinned where it is copied to and from an accelerator."""
        spare, self._spare = self._spare, None
        if spare is None:
            pinned = any(tensor.is_cuda for tensor in like.values())
            spare = {
                name: torch.full(tensor.shape, 0.0, dtype=torch.float32, pin_memory=pinned)
                for name, tensor in like.items()
            }
        return spare


def _copied(source: Mapping[str, Tensor], memory: dict[str, Tensor]) -> dict[str, Tensor]:
    _in_pieces(_copy, memory, source)
    return memory


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _beside(source: Tensor, piece: Tensor) -> Tensor:
    return source if source.device == piece.device else source.to(piece.device, non_blocking=True)


def _in_pieces(do: Callable[..., None], *models: Mapping[str, Tensor]) -> None:
    """Do something with the same piece of each model, for all pieces, on torch's threads."""
    on_cpu = all(tensor.device.type == "cpu" for model in models for tensor in model.values())
    num_threads = torch.get_num_threads() if on_cpu else 1

    @torch.no_grad()
    def some(first: int) -> None:
        number = 0
        for name in models[0]:
            parts = [model[name].detach().view(-1) for model in models]
            size = PIECE if on_cpu else _DEVICE_PIECE
            for begin in range(0, parts[0].numel(), size):
                if number % num_threads == first:
                    do(*[part[begin : begin + size] for part in parts])
                number += 1

    if num_threads == 1:
        return some(0)
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(some, range(num_threads)))
