"""What a simulated trainer's parameters must be made of, by what its hub has folded."""

from __future__ import annotations

from collections.abc import Iterable

from sitehub.state import HubState, key_of


def allowed(hub: HubState, num_blocks: int) -> set[int] | None:
    """Numbers of the blocks, `num_blocks` an epoch, that they may stand on: trained, or in a delta
    of the incarnation that is not in the trainer's version. None: see `_settled`."""
    incarnation = _settled(hub)
    if incarnation is None:
        return None
    rows = hub.view.db.execute(
        "SELECT epoch, block FROM blocks WHERE delta IN (SELECT seq FROM deltas d "
        "WHERE incarnation = ?1 AND (state IN ('undecided', 'cut') OR EXISTS "
        "(SELECT 1 FROM versions v WHERE v.round = d.round AND v.version > ?2)))",
        (incarnation, hub.trainer.version),
    ).fetchall()
    return _numbers(rows, num_blocks) | _numbers(hub.done, num_blocks)


def unpublished(hub: HubState, num_blocks: int) -> set[int] | None:
    """Numbers of the blocks that lie between them and the anchor: trained, and in no delta."""
    if _settled(hub) is None:
        return None
    cut = {key_of(one) for one in hub.publication.blocks} if hub.publication else set()
    return _numbers(hub.done - cut, num_blocks)


def _settled(hub: HubState) -> int | None:
    """The incarnation; None where it has ended, or where the hub has folded, since the trainer's
    last command, what the next one will answer."""
    one = hub.view.incarnation(hub.incarnation[0]) if hub.incarnation else None
    if one is None or one.state == "departed" or hub.trainer.version is None:
        return None
    return None if hub.rebase is not None or hub.discard else one.token[0]


def _numbers(keys: Iterable[tuple[int, ...]], num_blocks: int) -> set[int]:
    return {key[0] * num_blocks + key[1] for key in keys}
