"""What the trainer does next: decided at every block boundary, one command at a time.

The order keeps the anchor rule: refusals and reclaims are answered first, then the
newest version is folded in, then a due delta is cut, then the version is evaluated where that is
this site's turn, then the next started block is trained.

With overlap, a new version is fetched and computed while blocks are trained, and folded in between
two steps; only a delta waits for it, so that it is based on the newest version (docs/overlap.md).
"""

from __future__ import annotations

from typing import Any

from eventlog import phases
from eventlog.events import BlockCompleted, VersionApplied
from leases import retention
from leases.progress import share_done, share_merged
from leases.rows import Block, Version
from leases.states import TRAINED, TRAINING
from sitehub import delivery, evaluating, saved
from sitehub.actions import Action, Fetch, Tell
from sitehub.saved import Resume
from sitehub.state import HubState, key_of


def next_command(hub: HubState, held: list[Block], now: float) -> list[Action]:
    """The trainer does not train: what it is told, or what must be fetched first."""
    trainer = hub.trainer
    if trainer.version is None:
        return [] if trainer.beside else _load(hub, now)
    if hub.resume is not None and not trainer.resumed:
        return tell(hub, _resume(hub, hub.resume))
    if hub.discard or hub.rebase is not None:
        return [] if trainer.beside else _answer(hub)
    if saved.is_due(hub, now):
        return tell(hub, saved.command(hub, now))
    behind = trainer.version < hub.view.run().version and not hub.lacking  # see `_follow`
    if not behind and not trainer.beside and delivery.must_publish(hub, held):
        return tell(hub, delivery.cut(hub, held, trainer.version))
    if (behind or trainer.beside) and not hub.overlaps:
        return []  # see `exchange`
    if not trainer.beside and not behind and (asked := evaluating.due(hub, now)):
        return tell(hub, asked)
    return _train(hub, held)


def exchange(hub: HubState, now: float) -> list[Action]:
    """The version after the trainer's, once there is one: fetched, computed, folded in; where
    training overlaps with that, at any time, else at a block boundary."""
    trainer = hub.trainer
    if trainer.version is None or (trainer.busy and not hub.overlaps):
        return []
    row = hub.view.version(trainer.version + 1)
    if row is None:
        return []
    command = _follow(hub, row)
    if command["path"] not in hub.files:
        return _fetch(hub, command["path"], now)
    if trainer.beside or trainer.busy not in ("", "train"):
        return []
    if not trainer.busy and (hub.discard or hub.rebase is not None):
        return []  # that comes first
    if command["do"] == "load":
        return [] if trainer.busy else tell(hub, command)
    trainer.beside = "apply"
    trainer.num_beside += 1
    return [Tell(command)]


def _follow(hub: HubState, row: Version) -> dict[str, Any]:
    """How the trainer comes to the next version: by its update, or where that cannot be had, while
    what is begun is ended and delivered, by a later snapshot, on which the undelivered progress is
    kept as on any new version: by the one that it fetches already, where it does, as in `_load`."""
    later = _later(hub, row.version) if row.update_blob in hub.lacking else None
    if later is not None and _asked_at(hub, later[1]) < _asked_at(hub, row.update_blob):
        command = {"do": "load", "version": later[0], "kind": "snapshot"}
        return {**command, "path": later[1], "keep": True}
    progress = share_merged(hub.view.config(), hub.view.index(), row.version, row.merged_tokens)
    command = {"do": "apply", "version": row.version, "path": row.update_blob}
    return {**command, "progress": progress}


def _resume(hub: HubState, what: Resume) -> dict[str, Any]:
    """What the trainer takes up from its site's last life, once: before it trains."""
    hub.trainer.resumed = True
    return {"do": "resume", "path": what.path, "own": what.own, "saved": what.saved}


def tell(hub: HubState, command: dict[str, Any]) -> list[Action]:
    hub.trainer.busy = command["do"]
    hub.trainer.num_told += 1
    return [Tell(command)]


def _answer(hub: HubState) -> list[Action]:
    """To a reclaim of begun blocks, then to a refusal."""
    if hub.discard:
        hub.discard = False
        return tell(hub, {"do": "discard"})
    reset, hub.rebase = bool(hub.rebase), None
    return tell(hub, {"do": "rebase", "reset": reset})


def warm_up(hub: HubState, now: float) -> list[Action]:
    """At the door behind a predecessor (R11): hold the newest version before we are admitted."""
    trainer = hub.trainer
    if trainer.ready is None or trainer.busy or trainer.beside or trainer.cold:
        return []
    return _load(hub, now) if trainer.version is None else exchange(hub, now)


def _load(hub: HubState, now: float) -> list[Action]:
    """A joiner starts from the newest snapshot, or from the initial parameters; from the one that
    it fetches already, though newer ones are stored meanwhile: or a slow link would never end one.
    What cannot be had is passed over for the one before."""
    starts = _starts(hub)
    for version, blob in starts.items():
        if blob in hub.files:
            kind = "snapshot" if version else "initial"
            return tell(hub, {"do": "load", "version": version, "path": blob, "kind": kind})
    if not hub.fetching:
        for blob in starts.values():
            if found := _fetch(hub, blob, now):
                return found
    return []


def _starts(hub: HubState) -> dict[int, str]:
    """By version, newest first, the blobs from which kept updates lead to the newest version: the
    snapshots that are not released, and the initial parameters while the first update is not."""
    view, found = hub.view, {}
    row = view.snapshot_at_most(view.run().version)
    while row is not None:
        found[row.version] = row.snapshot_blob or ""
        row = view.snapshot_at_most(row.version - 1)
    first = view.version(1)
    if first is None or not retention.still_released(view.db, {first.update_blob}):
        found[0] = view.run().parameters_blob
    return found


def _later(hub: HubState, version: int) -> tuple[int, str] | None:
    """Version and blob of the kept snapshot that leads to a version or beyond: of the one that is
    here or on its way already, else of the newest."""
    kept = [(v, blob) for v, blob in _starts(hub).items() if v >= version]
    begun = [one for one in kept if one[1] in hub.files or one[1] in hub.fetching]
    return next(iter(begun or kept), None)


def _asked_at(hub: HubState, blob: str) -> float:
    """When a blob that cannot be had is asked for again; at once, where nobody has tried."""
    return hub.lacking.get(blob, (0.0, 0.0))[0]


def _fetch(hub: HubState, blob: str, now: float) -> list[Action]:
    if blob in hub.fetching or now < _asked_at(hub, blob):
        return []
    hub.fetching[blob] = now
    return [Fetch(blob)]


def _train(hub: HubState, held: list[Block]) -> list[Action]:
    """The next block that the fold says we started (R7); none that we could not deliver (R12)."""
    for block in held:
        if hub.leaving is not None:
            break
        if block.state == TRAINING and key_of(block) not in hub.done:
            begin, end = _progress(hub, held, block)
            return tell(
                hub,
                {
                    "do": "train",
                    "epoch": block.epoch,
                    "block": block.block,
                    "progress_from": begin,
                    "progress_to": end,
                    "tag": list(key_of(block)),
                },
            )
    return []


def _progress(hub: HubState, held: list[Block], block: Block) -> tuple[float, float]:
    """The run's progress at the block's start and end: what the base version has merged, and what
    this site has trained since."""
    index, version = hub.view.index(), hub.trainer.version or 0
    row = hub.view.version(version)
    merged = row.merged_tokens if row else 0
    trained = [one for one in held if one.state == TRAINED or key_of(one) in hub.done]
    own = sum(index.tokens(one.block) for one in trained)
    if hub.incarnation is not None:
        own += hub.view.undecided_tokens(hub.incarnation[0]) + _merged_beyond(hub, version)
    config, more = hub.view.config(), index.tokens(block.block)
    return (
        share_done(config, index, version, merged, own),
        share_done(config, index, version, merged, own + more),
    )


def _merged_beyond(hub: HubState, version: int) -> int:
    """Own tokens that are merged in versions which the trainer has still to fold in."""
    assert hub.incarnation is not None
    rows = hub.view.ask(
        "SELECT coalesce(sum(d.tokens), 0) FROM versions v JOIN deltas d ON d.round = v.round "
        "WHERE v.version > ? AND d.incarnation = ? AND d.state = 'merged'",
        version,
        hub.incarnation[0],
    )
    return int(rows[0][0])


def on_trained(hub: HubState, answer: dict[str, Any]) -> None:
    """A block is trained: say so, unless it was taken back meanwhile (a discard follows)."""
    trainer, took = hub.trainer, float(answer["seconds"])
    trainer.step, trainer.tokens = answer["step"], answer["tokens_total"]
    trainer.tokens_per_s = answer["tokens_per_s"]
    trainer.block_s = 0.7 * trainer.block_s + 0.3 * took if trainer.block_s else took
    trainer.num_deaths = 0
    epoch, number, lease = (int(part) for part in answer["tag"])
    block = {key_of(one): one for one in hub.held()}.get((epoch, number, lease))
    if block is None or key_of(block) not in hub.claimed:
        return
    hub.done.add(key_of(block))
    hub.queue.append(
        BlockCompleted(
            epoch=epoch, block=number, lease=block.lease, loss=answer["loss"], seconds=took
        )
    )


def on_version(hub: HubState, answer: dict[str, Any]) -> None:
    """The trainer holds a version."""
    if answer["did"] == "apply" and hub.trainer.version is None:
        return  # the incarnation has ended meanwhile: it begins anew from a load
    hub.trainer.version, hub.trainer.digest = answer["version"], answer["digest"]
    hub.lacking.clear()
    hub.unneeded += sorted(hub.files)  # it has read them
    hub.files.clear()
    hub.spent(phases.APPLY, float(answer["seconds"]))
    for kind, seconds in answer.get("stall", {}).items():
        hub.spent(kind, float(seconds))
        hub.stall_s += float(seconds)
    hub.trainer.source = "update"
    if answer["did"] == "load":
        hub.trainer.source = "snapshot" if answer["version"] else "initial"
    if hub.incarnation is not None:
        announce(hub)


def announce(hub: HubState) -> None:
    """Say which version the trainer holds, once it is the newest; once for each."""
    trainer, run = hub.trainer, hub.view.run()
    if trainer.version is None or trainer.version < run.version:
        return
    if hub.announced_version == run.version:
        return
    hub.announced_version = trainer.version
    hub.queue.append(
        VersionApplied.model_validate(
            {
                "version": trainer.version,
                "parameters_digest": trainer.digest,
                "source": trainer.source,
                "seconds": hub.phases,
                "stall_s": hub.stall_s,
            }
        )
    )
    hub.phases, hub.stall_s = {}, 0.0
