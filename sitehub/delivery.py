"""From trained blocks to a delta in the log: when it is cut, its file, blob and event (R12)."""

from __future__ import annotations

from typing import Any

from eventlog.events import BlockStarted, DeltaBlock, DeltaPublished
from leases.rows import Block
from leases.states import LEASED, TRAINED, TRAINING
from sitehub.actions import Action, Drop, Store
from sitehub.state import HubState, Publication, key_of

CLAIMS_AHEAD = 1  # blocks started in the log beside the one in training (R7)


def claim(hub: HubState, held: list[Block], now: float) -> None:
    """Say in the log that we start blocks, one ahead of the one in training, so that a round trip
    to the broker costs no training time; none that would not end before the deadline's margin, or
    before the job's."""
    run = hub.view.run()
    if run.state != "running" or hub.leaving or hub.trainer.version != run.version:
        return
    open_claims = hub.claimed - hub.done
    in_work = sum(block.state != TRAINED and key_of(block) in open_claims for block in held)
    trained = any(block.state == TRAINED for block in held)
    for block in held:
        if block.state != LEASED or key_of(block) in hub.claimed:
            continue
        if in_work > CLAIMS_AHEAD or (pressed(hub, in_work + 1) and (trained or in_work)):
            return
        if outlives_job(hub, in_work + 1, now):
            return
        hub.claimed.add(key_of(block))
        hub.queue.append(BlockStarted(epoch=block.epoch, block=block.block, lease=block.lease))
        in_work += 1


def pressed(hub: HubState, num_blocks: int) -> bool:
    """Whether so many more blocks would not end before the deadline's margin."""
    round_, timing = hub.view.round(), hub.view.timing()
    if round_ is None:
        return False
    left = round_.deadline_ticks - (hub.view.run().ticks - round_.opened_ticks)
    margin_s = min(timing.margin_s, round_.deadline_ticks * timing.tick_s / 4)
    return left * timing.tick_s < margin_s + num_blocks * hub.trainer.block_s


def outlives_job(hub: HubState, num_blocks: int, now: float) -> bool:
    """Whether so many more blocks would not end before the margin of the job's walltime (P7)."""
    if hub.walltime_end is None:
        return False
    left_s = hub.walltime_end - now - hub.view.timing().margin_s
    return left_s < num_blocks * likely_block_s(hub)


def likely_block_s(hub: HubState) -> float:
    """How long a block takes; a lease, as long as nobody has seen one."""
    return hub.trainer.block_s or hub.view.timing().lease_s


def must_publish(hub: HubState, held: list[Block]) -> bool:
    """At the quota (everything granted is trained), before the deadline's margin, when leaving, or
    when the run starts no more: then though no round is open, for none will be before the run goes
    on, and what is delivered outlives us (R4). Only where the log agrees on what is completed, so
    that the delta holds the progress of exactly its blocks."""
    trained = {key_of(block) for block in held if block.state == TRAINED}
    if not trained or hub.publication is not None or hub.queue or hub.appending:
        return False
    if any(key_of(block) in hub.done - trained for block in held):
        return False
    if hub.leaving is not None:
        return True
    if hub.incarnation is None or hub.view.has_undecided(hub.incarnation[0]):
        return False
    round_, in_work = hub.view.round(), any(block.state == TRAINING for block in held)
    rests = hub.view.run().state != "running" and not in_work
    if round_ is None:
        return rests
    if round_.state == "closed":  # its version comes first
        return False
    return rests or all(block.state == TRAINED for block in held) or pressed(hub, 1)


def cut(hub: HubState, held: list[Block], version: int) -> dict[str, Any]:
    """Begin a publication; the command that cuts the delta from the trainer's progress."""
    hub.num_published += 1
    hub.publication = Publication(
        blocks=[block for block in held if block.state == TRAINED],
        base_version=version,
        name=f"delta-{hub.num_published}",
        last=hub.leaving is not None,
    )
    codec = hub.view.config().outer.delta_codec
    return {"do": "publish", "path": hub.publication.name, "codec": codec}


def on_cut(hub: HubState, answer: dict[str, Any]) -> None:
    """The trainer has written the delta; its progress now counts from there."""
    one = hub.publication
    hub.spent("encode", float(answer["seconds"]))
    if one is not None and one.name == answer["path"]:
        one.codec, one.norm, one.max_abs = answer["codec"], answer["norm"], answer["max_abs"]


def on_stored(hub: HubState, name: str, blob: str, num_bytes: int, seconds: float) -> None:
    hub.storing = False
    hub.spent("upload", seconds)
    one = hub.publication
    if one is not None and one.name == name:
        one.blob, one.num_bytes = blob, num_bytes


def deliver(hub: HubState) -> list[Action]:
    """Store the delta, then announce it: a blob is visible only through its event (R20)."""
    one = hub.publication
    if one is None or not one.codec or one.announced:
        return []
    if one.blob is None:
        if hub.storing:
            return []
        hub.storing = True
        return [Store(one.name)]
    index = hub.view.index()
    one.announced = True
    hub.queue.append(
        DeltaPublished(
            base_version=one.base_version,
            blocks=tuple(
                DeltaBlock(
                    epoch=block.epoch,
                    block=block.block,
                    lease=block.lease,
                    tokens=index.tokens(block.block),
                )
                for block in one.blocks
            ),
            blob=one.blob,
            num_bytes=one.num_bytes,
            codec=one.codec,
            norm=one.norm,
            max_abs=one.max_abs,
            last=one.last,
        )
    )
    return [Drop((one.name,))]


def settle(hub: HubState, held: list[Block]) -> None:
    """Forget a publication once the log has judged it: its blocks are no longer held as trained."""
    keys = {key_of(block) for block in held}
    hub.done &= keys
    hub.claimed &= keys
    one = hub.publication
    if one is None or not one.announced or hub.appending or hub.queue:
        return
    still = {key_of(block) for block in held if block.state == TRAINED}
    if not any(key_of(block) in still for block in one.blocks):
        hub.publication = None
