"""How far a run is, in its own target's unit, and how much more may be handed out (R15)."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from functools import lru_cache

from eventlog.codec import unpack
from eventlog.config import RunConfig
from eventlog.events import DataShape
from eventlog.inner import Inner
from leases.blocks import BlockIndex


@dataclass(frozen=True, slots=True)
class Goal:
    """What the run must merge. `tokens` is None for a target in rounds."""

    tokens: int | None
    rounds: int | None


def goal(config: RunConfig, index: BlockIndex) -> Goal:
    """The target in tokens, or in rounds."""
    target = config.target
    if target.rounds is not None:
        return Goal(None, target.rounds)
    if target.epochs is not None:
        return Goal(target.epochs * index.epoch_tokens, None)
    return Goal(target.tokens, None)


def settings(db: sqlite3.Connection) -> tuple[RunConfig, BlockIndex]:
    """Configuration and blocks of the folded run. Only after RunCreated."""
    return parsed(*db.execute("SELECT config, data FROM run").fetchone())


@lru_cache(maxsize=16)
def parsed(config: bytes, data: bytes) -> tuple[RunConfig, BlockIndex]:
    """Configuration and blocks from what the run's row holds."""
    known = RunConfig.recorded(unpack(config))
    return known, BlockIndex(known.seed, DataShape.model_validate(unpack(data)))


def target_reached(
    db: sqlite3.Connection, known: tuple[RunConfig, BlockIndex] | None = None
) -> bool:
    """Whether the merged tokens, the versions or the epochs (quarantined blocks aside) reach the
    target. Only for a fold of the whole log. `known`: its settings, where the caller has them."""
    config, index = known or settings(db)
    if config.target.epochs is not None:
        ((num_done,),) = db.execute(
            "SELECT count(*) FROM epochs WHERE merged + quarantined = blocks"
        ).fetchall()
        return bool(num_done >= config.target.epochs)
    aim = goal(config, index)
    version, merged = db.execute("SELECT version, merged_tokens FROM run").fetchone()
    return bool(version >= aim.rounds if aim.rounds is not None else merged >= (aim.tokens or 0))


def share_done(
    config: RunConfig, index: BlockIndex, version: int, merged_tokens: int, own_tokens: int
) -> float:
    """Progress in [0, 1] that schedules use: what is merged at the base version plus what the site
    itself has trained since, behind what a forked run's parent had done."""
    begun = config.start.share
    own = share_of_target(config, index, version, merged_tokens, own_tokens)
    return begun + (1.0 - begun) * own if begun else own


def share_of_target(
    config: RunConfig, index: BlockIndex, version: int, merged_tokens: int, own_tokens: int = 0
) -> float:
    """Progress in [0, 1] of the run's own target."""
    aim = goal(config, index)
    if aim.rounds is not None:
        quota_tokens = config.blocks_per_round * index.block_tokens
        return min(1.0, (version + own_tokens / quota_tokens) / aim.rounds)
    return min(1.0, (merged_tokens + own_tokens) / (aim.tokens or 1))


def share_merged(config: RunConfig, index: BlockIndex, version: int, merged_tokens: int) -> float:
    """Progress in [0, 1] once a version is committed, with so many tokens merged in all: what the
    schedule of the outer step follows."""
    return share_done(config, index, version, merged_tokens, 0)


def lr_share(progress: float, warmup: float, final_share: float) -> float:
    """The share of the peak rate at a progress in [0, 1] (clamped): linear from 0 to 1 over
    `warmup`, then half a cosine from 1 down to `final_share` (SGDR, arXiv:1608.03983, eq. 5)."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if warmup >= 1.0:
        return 1.0
    done = (progress - warmup) / (1.0 - warmup)
    return final_share + (1.0 - final_share) * (1.0 + math.cos(math.pi * done)) / 2.0


def inner_share(progress: float, inner: Inner) -> float:
    """The share of the inner peak rate at a progress in [0, 1] (clamped), by `inner.schedule`."""
    if inner.schedule == "cosine":
        return lr_share(progress, inner.warmup, inner.final_lr)
    progress = min(max(progress, 0.0), 1.0)
    if progress < inner.warmup:
        return progress / inner.warmup
    left = 1.0 - progress
    if inner.schedule == "constant" or left >= inner.decay:
        return 1.0
    return inner.final_lr + (1.0 - inner.final_lr) * left / inner.decay
