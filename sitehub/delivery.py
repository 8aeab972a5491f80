"""From trained blocks to a delta in the log: when it is cut, its file, blob and event (R12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventlog import phases
from eventlog.config import MAX_BLOCKS_PER_ROUND
from eventlog.events import BlockStarted, DeltaBlock, DeltaPublished
from leases.blocks import BlockIndex
from leases.rows import Block
from leases.states import LEASED, TRAINED, TRAINING
from sitehub import settling
from sitehub.actions import Action, Drop, Store
from sitehub.state import HubState, Publication, key_of

CLAIMS_AHEAD = 1  # blocks started in the log beside the one in training (R7)
MOST_BEHIND = 1  # versions that who trains beside the exchange may be behind as it starts a block


def claim(hub: HubState, held: list[Block], now: float) -> None:
    """Say in the log that we start blocks, one ahead of the one in training, so that a round trip
    to the broker costs no training time; none that would not end before the deadline's margin, or
    before the job's."""
    run, version = hub.view.run(), hub.trainer.version
    if run.state != "running" or hub.leaving or version is None:
        return
    if run.version - version > (MOST_BEHIND if hub.overlaps else 0):
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
    """Whether so many more blocks would not end before the deadline's margin. A round that has our
    delta, or has been cut, has no deadline for us."""
    round_, timing = hub.view.round(), hub.view.timing()
    if round_ is None or (hub.overlaps and (round_.state != "open" or _has_delivered(hub))):
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
    """At the quota, or with everything granted trained; before the deadline's margin, when leaving,
    or when the run starts no more: then though no round is open, for none will be before the run
    goes on, and what is delivered outlives us (R4). The delta holds the progress of exactly its
    blocks: so either the log agrees by now on what is completed, or, with overlap, before the delta
    is announced."""
    trained = _trained(hub, held)
    if not trained or hub.publication is not None:
        return False
    if not hub.overlaps and (hub.queue or hub.appending or _is_ahead_of_log(hub, held)):
        return False
    if hub.leaving is not None:
        return True
    if _has_delivered(hub):
        return False
    round_ = hub.view.round()
    rests = hub.view.run().state != "running" and not _is_in_work(hub, held)
    if round_ is None:
        return rests
    if round_.state == "closed":  # its version comes first
        return False
    if hub.overlaps and hub.view.run().decision[0] <= round_.seq:
        return False  # what the round grants beside what it granted ahead is decided next
    if len(trained) == len(held) or (hub.overlaps and len(trained) >= _quota(hub, round_.round)):
        return True
    return rests or pressed(hub, 1)


def _is_in_work(hub: HubState, held: list[Block]) -> bool:
    return any(one.state == TRAINING and key_of(one) not in hub.done for one in held)


def _trained(hub: HubState, held: list[Block]) -> list[Block]:
    """What the next delta holds."""
    if hub.overlaps:
        return [block for block in held if key_of(block) in hub.done]
    return [block for block in held if block.state == TRAINED]


def _is_ahead_of_log(hub: HubState, held: list[Block]) -> bool:
    return any(key_of(block) in hub.done and block.state != TRAINED for block in held)


def _quota(hub: HubState, round_: int) -> int:
    """Ours in this round; more than we can hold where we are no member of it."""
    assert hub.incarnation is not None
    quota = hub.view.quotas(round_).get(hub.incarnation[0])
    return MAX_BLOCKS_PER_ROUND + 1 if quota is None else quota


def _has_delivered(hub: HubState) -> bool:
    """Whether a delta of ours awaits its decision: another one has to wait for that."""
    return hub.incarnation is None or hub.view.has_undecided(hub.incarnation[0])


def note_decision(hub: HubState, now: float) -> None:
    """How long our delta waited: for others, for the merge, for the log."""
    one = hub.publication
    if hub.delivered_at is not None and one is None and not _has_delivered(hub):
        hub.spent(phases.WAIT, now - hub.delivered_at)
        hub.delivered_at = None


def cut(hub: HubState, held: list[Block], version: int) -> dict[str, Any]:
    """Begin a publication; the command that cuts the delta from the trainer's progress."""
    assert hub.incarnation is not None
    hub.num_published += 1
    blocks = _trained(hub, held)
    hub.publication = Publication(
        blocks=blocks,
        base_version=version,
        name=f"delta-{hub.num_published}",
        label=settling.label_of(hub.incarnation[0], blocks),
        last=hub.leaving is not None,
    )
    codec = hub.view.config().outer.delta_codec
    if hub.publication.last and codec not in settling.LOSSLESS_ENOUGH:
        codec = "bf16"
    one = hub.publication
    return {"do": "publish", "path": one.name, "codec": codec, "label": one.label}


def on_cut(hub: HubState, answer: dict[str, Any]) -> None:
    """The trainer has written the delta; its progress now counts from there."""
    one = hub.publication
    hub.spent(phases.ENCODE, float(answer["seconds"]))
    if answer.get("pending"):
        hub.unsettled.append(answer["label"])
    if one is None or one.name != answer["path"]:
        hub.unneeded.append(answer["path"])  # its blocks were taken back meanwhile
        return
    one.codec, one.norm, one.max_abs = answer["codec"], answer["norm"], answer["max_abs"]


def on_stored(hub: HubState, name: str, blob: str, num_bytes: int, seconds: float) -> None:
    hub.storing = False
    hub.spent(phases.UPLOAD, seconds)
    one = hub.publication
    if one is not None and one.name == name:
        one.blob, one.num_bytes = blob, num_bytes


def deliver(hub: HubState, held: list[Block]) -> list[Action]:
    """Store the delta, then announce it: a blob is visible only through its event (R20), and the
    log has to agree before on what is completed."""
    one = hub.publication
    if one is None or not one.codec or one.announced:
        return []
    if one.blob is None:
        if hub.storing:
            return []
        hub.storing = True
        return [Store(one.name)]
    states = {key_of(block): block.state for block in held}
    if any(states.get(key_of(block)) == TRAINING for block in one.blocks):
        return []
    one.announced = True
    hub.queue.append(
        DeltaPublished(
            base_version=one.base_version,
            blocks=delta_blocks(one.blocks, hub.view.index()),
            blob=one.blob,
            num_bytes=one.num_bytes,
            codec=one.codec,
            norm=one.norm,
            max_abs=one.max_abs,
            last=one.last,
        )
    )
    return [Drop((one.name,))]


def delta_blocks(blocks: Sequence[Block], index: BlockIndex) -> tuple[DeltaBlock, ...]:
    """Blocks as the delta names them that holds their progress: by token, with what they weigh."""
    return tuple(
        DeltaBlock(
            epoch=one.epoch, block=one.block, lease=one.lease, tokens=index.tokens(one.block)
        )
        for one in blocks
    )


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
