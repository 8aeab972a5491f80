"""Events that no honest process writes: what a lost mind, a wrong fence or a newer atoll would.

Each stands where the log would take it, with the counter and the names that its subject is to carry
on with, so that only the rule that it breaks can make it void.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventlog.codec import Envelope, encode, pack, unpack
from eventlog.events import (
    COORDINATOR,
    BlockCompleted,
    BlockStarted,
    DeltaBlock,
    DeltaPublished,
    Event,
    Heartbeat,
    LeaseGranted,
    LeaseStolen,
    SiteDeparted,
    Token,
)
from ops.simulate.lives import Life
from ops.simulate.network import finish
from ops.simulate.world import World


def claim(world: World, site: str, number: int) -> bool:
    """The site starts, completes or delivers a block of another, or starts or completes its own
    under another lease. Whether there was anything to claim."""
    referee = world.watcher.referee
    me = next((one for one in referee.lives.values() if one.site == site), None)
    kind = number % 3
    held = sorted(
        (key, one)
        for key, one in referee.ledger.held.items()
        if me is not None and (kind < 2 or one.incarnation != me.token[0])
    )
    if me is None or not held or referee.state != "running":
        return False
    key, one = held[number // 8 % len(held)]
    lease = one.lease
    if one.incarnation == me.token[0]:
        lease = (max(0, lease[0] - 1), "another lease")
    at: dict[str, Any] = {"epoch": key[0], "block": key[1], "lease": lease}
    event: Event
    if kind == 0:
        event = BlockStarted(**at)
    elif kind == 1:
        event = BlockCompleted(loss=1.0, seconds=1.0, **at)
    else:
        part = DeltaBlock(tokens=referee.ledger.tokens(key[1]), **at)
        event = DeltaPublished(
            base_version=referee.ledger.version,
            blocks=(part,),
            blob="f" * 64,
            num_bytes=1,
            codec="fp32",
            norm=1.0,
            max_abs=1.0,
        )
    _append(world, f"site.{site}", event, incarnation=me.token)
    return True


def lie(world: World, number: int) -> Callable[[bytes], bytes]:
    """What a site's next delta says instead: more tokens than its blocks have, or a block more
    that is another's."""

    def told(payload: bytes) -> bytes:
        wire = unpack(payload)
        if wire["type"] != DeltaPublished.type:
            return payload
        blocks = wire["data"]["blocks"]
        ours = {(block["epoch"], block["block"]) for block in blocks}
        others = sorted(item for item in world.watcher.referee.ledger.held.items()
                        if item[0] not in ours)  # fmt: skip
        if number % 2 and others:
            (epoch, block), one = others[number // 2 % len(others)]
            tokens = world.watcher.referee.ledger.tokens(block)
            more = {"epoch": epoch, "block": block, "lease": list(one.lease), "tokens": tokens}
            wire["data"]["blocks"] = sorted([*blocks, more], key=lambda b: (b["epoch"], b["block"]))
        else:
            for block in blocks:
                block["tokens"] *= 10
        world.injected("delta with a lie")
        return pack(wire)

    return told


def strange(world: World, site: str, number: int) -> None:
    """Bytes that are no event, an event of a newer schema or of no known type, or one that says it
    is another's."""
    subject = f"site.{site}"
    event = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
    if number % 4 == 0:
        _store(world, subject, b"no event")
    elif number % 4 == 1:
        _append(world, subject, event, wire={"v": 99})
    elif number % 4 == 2:
        _append(world, subject, event, wire={"type": "site.dreamt"})
    else:
        others = [life for life in world.watcher.referee.lives.values() if life.site != site]
        other: Life | None = others[number % len(others)] if others else None
        source = f"site.{other.site}" if other else COORDINATOR
        token = other.token if other else None
        _append(world, subject, event, source=source, incarnation=token)


def stale_decision(world: World, number: int) -> bool:
    """A decision of an older term, which the log's fence should have kept out. Whether there is
    anybody to decide about."""
    referee = world.watcher.referee
    lives = sorted(referee.lives.values(), key=lambda one: one.site)
    if not lives or not referee.term:
        return False
    one = lives[number % len(lives)]
    fields: dict[str, Any] = {"incarnation": one.token, "site": one.site}
    fields["reason"] = "from a term that is over"
    free = [
        block for block in range(referee.ledger.num_blocks) if referee.ledger.is_free((0, block))
    ]
    leased = [key for key, phase in referee.ledger.of(one.token[0]).items() if phase == 0]
    event: Event
    if number // 8 % 3 == 0 and free:
        event = LeaseGranted(epoch=0, blocks=tuple(free[:1]), **fields)
    elif number // 8 % 3 == 1 and leased:
        event = LeaseStolen(epoch=leased[0][0], blocks=(leased[0][1],), **fields)
    else:
        event = SiteDeparted(code="lost", **fields)
    _append(world, COORDINATOR, event, term=referee.term - 1)
    return True


def _append(
    world: World,
    subject: str,
    event: Event,
    *,
    source: str = "",
    term: int | None = None,
    incarnation: Token | None = None,
    wire: dict[str, Any] | None = None,
) -> None:
    n, previous = world.watcher.referee.pen(subject)
    envelope = Envelope(
        id=world.new_id(),
        type=event.type,
        version=event.schema_version,
        run=world.run,
        source=source or subject,
        n=n + 1,
        at=world.wall(),
        term=term,
        previous=(previous or None) if subject == COORDINATOR else None,
        incarnation=incarnation,
        seen=None,
    )
    payload = encode(event, envelope)
    if wire:
        payload = pack({**unpack(payload), **wire})
    _store(world, subject, payload)


def _store(world: World, subject: str, payload: bytes) -> None:
    history = world.history
    finish(history.append(subject, [payload], history.last_of(subject)))
