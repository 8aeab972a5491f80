"""The anchor rule: what a trainer delivers, and how it goes on, so that nothing counts twice.

A trainer keeps an anchor P beside its local parameters. P − local is at every block boundary the
progress of exactly the completed, undelivered blocks: the pseudo-gradient. Publishing moves the
anchor to the local parameters; a new version, or a refusal, moves both to the new parameters and
keeps what lies between them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Anchor:
    """The anchor P of one trainer.

    `local` is always the trainer's own mapping of names to fp32 parameters, with the names, shapes
    and devices the anchor was made from; it is changed in place and only where said. `new` may
    lie on any device. Differences are rounded to fp32: where they are exact, the rule is exact.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Anchor a trainer at these parameters, which are copied."""
        self._anchor = {name: tensor.detach().clone() for name, tensor in parameters.items()}

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """P itself, to look at."""
        return self._anchor

    @torch.no_grad()
    def delta(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """P − local, sorted by name: the progress not yet delivered."""
        return {name: torch.sub(self._anchor[name], local[name]) for name in sorted(self._anchor)}

    @torch.no_grad()
    def publish(self, local: Mapping[str, Tensor]) -> None:
        """P ← local: what `delta` gave is delivered and is not given again."""
        for name, anchor in self._anchor.items():
            anchor.copy_(local[name])

    @torch.no_grad()
    def rebase(self, local: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
        """local ← new + (local − P), P ← new: on a new version, or after a refusal (then `new`
        holds nothing of what was refused). Undelivered progress is kept, all else is as in `new`.
        """
        for name, anchor in self._anchor.items():
            progress = torch.sub(local[name], anchor)
            anchor.copy_(new[name])
            local[name].copy_(progress.add_(anchor))

    @torch.no_grad()
    def discard(self, local: Mapping[str, Tensor]) -> None:
        """local ← P: the undelivered progress is given up (its blocks were reclaimed)."""
        for name, anchor in self._anchor.items():
            local[name].copy_(anchor)

    @torch.no_grad()
    def restart(self, local: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
        """local, P ← new: after a refusal for non-finite or outlying values, nothing is kept."""
        for name, anchor in self._anchor.items():
            anchor.copy_(new[name])
            local[name].copy_(anchor)
