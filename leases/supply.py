"""What can be granted now, and in which order (R15)."""

from __future__ import annotations

import math

from eventlog.config import RunConfig
from leases.blocks import BlockIndex
from leases.progress import goal
from leases.rows import Run
from leases.view import View

_OPEN = (
    "SELECT epoch, blocks, cursor, freed, outstanding, merged, quarantined, merged_tokens "
    "FROM epochs WHERE closed_seq IS NULL ORDER BY epoch"
)
_TOUCHED = "SELECT 1 FROM blocks WHERE epoch = ? AND block = ?"


def open_epochs(view: View) -> list[dict[str, int]]:
    """Epochs that were begun and are not closed, in order: number and counts of blocks."""
    names = ("epoch", "blocks", "cursor", "freed", "outstanding", "merged", "quarantined", "tokens")
    return [dict(zip(names, row, strict=True)) for row in view.ask(_OPEN)]


def num_grantable(view: View, limit: int) -> int:
    """How many blocks `grantable` would give, without choosing them."""
    config, index = view.config(), view.index()
    limit = min(limit, _blocks_to_target(view.run(), config, index))
    if config.target.epochs is None or limit <= 0:
        return max(0, limit)
    known = open_epochs(view)
    fresh = (config.target.epochs - _num_epochs(view)) * index.num_blocks
    begun = sum(
        row["blocks"] - row["outstanding"] - row["merged"] - row["quarantined"]
        for row in known
        if row["epoch"] < config.target.epochs
    )
    return min(limit, begun + max(0, fresh))


def grantable(view: View, limit: int) -> list[tuple[int, int]]:
    """Up to `limit` available blocks, (epoch, block), in the order they are granted: the target
    is never exceeded by more than part of a block, freed blocks first, then the epoch's order;
    the next epoch once one has none available (R15)."""
    run, config, index = view.run(), view.config(), view.index()
    limit = min(limit, _blocks_to_target(run, config, index))
    found: list[tuple[int, int]] = []
    known = {row["epoch"]: row for row in open_epochs(view)}  # a closed one has none available
    begun = [e for e, row in known.items() if _has_available(row)]
    epoch = min(begun) if begun else _num_epochs(view)
    while len(found) < limit:
        if config.target.epochs is not None and epoch >= config.target.epochs:
            break
        row = known.get(epoch, {"cursor": 0, "freed": 0})
        want = limit - len(found)
        freed = _freed(view, epoch, want) if row["freed"] else []
        found += [(epoch, block) for block in freed]
        position = row["cursor"]
        while len(found) < limit and position < index.num_blocks:
            block = index.at(epoch, position)
            if not view.ask(_TOUCHED, epoch, block):
                found.append((epoch, block))
            position += 1
        epoch += 1
    return found


def _has_available(row: dict[str, int]) -> bool:
    return row["freed"] > 0 or row["cursor"] < row["blocks"]


def _blocks_to_target(run: Run, config: RunConfig, index: BlockIndex) -> int:
    """Blocks that may still be handed out: merged plus outstanding stay within the target,
    rounded up to a block. For a target in rounds the quotas are the bound."""
    aim = goal(config, index)
    if aim.tokens is None:
        return 1 << 30
    left = aim.tokens - run.merged_tokens - run.outstanding_tokens
    return max(0, math.ceil(left / index.block_tokens))


def _freed(view: View, epoch: int, limit: int) -> list[int]:
    """Blocks of an epoch that were granted once and are available again."""
    rows = view.ask(
        "SELECT block FROM blocks WHERE epoch = ? AND state = 'available' ORDER BY block LIMIT ?",
        epoch,
        limit,
    )
    return [row[0] for row in rows]


def _num_epochs(view: View) -> int:
    return int(view.ask("SELECT coalesce(max(epoch) + 1, 0) FROM epochs")[0][0])
