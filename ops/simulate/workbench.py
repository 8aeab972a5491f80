"""What the virtual world and a site's virtual trainer know of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.simulate.loop import VirtualLoop
from sitehub.rehearsal import Harm

if TYPE_CHECKING:
    from ops.simulate.trainers import SimHandover


@dataclass(slots=True)
class Bench:
    """What the world knows of a site's trainer, and does to it."""

    loop: VirtualLoop
    size: int
    num_blocks: int  # of an epoch
    steps_per_s: float
    steps_per_block: int
    start_s: float
    allowed: Callable[[], set[int] | None]  # numbers that the trainer's parameters may stand on
    unpublished: Callable[[], set[int] | None]  # numbers that the next delta must hold
    begins: Callable[[int, int], None]  # it is about to train this block of this epoch
    spoiled: dict[str, str]  # takes the digests of bad deltas, and what is wrong with each
    poisoned: set[int]  # numbers of blocks that make NaN of a delta
    violated: Callable[[str], None]
    injected: Callable[[str], None]
    exchange_s: float = 0.05  # that it takes to encode a delta, or to compute a version
    slow: float = 1.0  # a block takes so many times as long
    hung_until: float = 0.0
    harm: Harm | None = None  # of the next delta
    rotten: Harm | None = None  # of every delta, until a trainer starts anew
    handover: SimHandover | None = None
