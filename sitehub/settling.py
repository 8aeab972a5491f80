"""Error feedback, the hub's part: what the log decided of each delta that lost something.

A delta's label names its incarnation and its first block with that block's lease, so whoever comes
after a crash finds in the log what became of it.
"""

from __future__ import annotations

from typing import Any

from leases.rows import Block
from sitehub.actions import Action, Tell
from sitehub.state import HubState

LOSSLESS_ENOUGH = ("fp32", "bf16")  # for a site's last delta: what it loses goes with nobody


def label_of(incarnation: int, blocks: list[Block]) -> str:
    """A delta's label."""
    first = min(blocks, key=lambda block: (block.epoch, block.block))
    return f"{incarnation}:{first.epoch}:{first.block}:{first.lease[0]}"


def settle(hub: HubState) -> list[Action]:
    """Tell the trainer of each delta that is decided, until it says that it has heard: a residual
    that cannot be written now is to be written later, or nothing would ever count again."""
    found: list[Action] = []
    for label in hub.unsettled:
        merged = None if label in hub.settling else _fate(hub, label)
        if merged is not None:
            hub.settling.add(label)
            found.append(Tell({"do": "settle", "label": label, "merged": merged}))
    return found


def on_settled(hub: HubState, answer: dict[str, Any]) -> None:
    """The trainer has settled a delta, or could not."""
    label = answer["label"]
    hub.settling.discard(label)
    if "error" not in answer and label in hub.unsettled:
        hub.unsettled.remove(label)


def _fate(hub: HubState, label: str) -> bool | None:
    """Whether it was merged; None while that may yet be."""
    incarnation, epoch, block, lease = map(int, label.split(":"))
    rows = hub.view.ask(
        "SELECT state FROM deltas WHERE incarnation = ? AND first_epoch = ? AND first_block = ? "
        "AND seq > ? ORDER BY seq LIMIT 1",
        incarnation,
        epoch,
        block,
        lease,
    )
    if rows:
        return {"merged": True, "refused": False}.get(rows[0][0])
    mine = hub.incarnation is not None and hub.incarnation[0] == incarnation
    if mine and hub.publication is not None and hub.publication.label == label:
        return None  # it is on its way
    one = hub.view.incarnation(incarnation)
    return False if mine or one is None or one.state == "departed" else None
