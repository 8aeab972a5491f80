"""Sites of a rig that write what real hubs write, on a real broker, and train nothing.

Their deltas are blobs that were stored before. The log is whole: the coordinator that reads it, and
an audit, find nothing that a site could not have done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eventlog.events import (
    OPERATOR,
    BlockCompleted,
    BlockStarted,
    DeltaPublished,
    RoundClosed,
    RoundCommitted,
    RunCreated,
    RunPaused,
    RunResumed,
    SiteJoined,
    Token,
    VersionApplied,
)
from eventlog.writer import Stamp, Writer
from leases.rows import Block, Incarnation
from leases.states import LEASED
from ops.bench.rig import Rig
from sitehub.delivery import delta_blocks

PATIENCE_S = 600.0  # a coordinator recovers, judges and merges billions of bytes


@dataclass(frozen=True, slots=True)
class Round:
    """Sequences of what a round was made of: its last delta, its cut, its commit."""

    delivered: int
    closed: int
    committed: int
    said: RoundCommitted


class Scripted:
    """So many sites, which take part in all rounds together."""

    def __init__(self, rig: Rig, num_sites: int) -> None:
        self._rig = rig
        self._pens = {
            name: Writer(rig.log, f"site.{name}")
            for name in (f"site-{number}" for number in range(num_sites))
        }
        self._tokens: dict[str, Token] = {}

    async def join(self) -> None:
        """All are admitted and hold version 0, before the first round opens."""
        rig = self._rig
        one = (await rig.until(lambda: rig.of(RunCreated), "the run"))[0][1]
        operator = Writer(rig.log, OPERATOR)
        operator.set(*rig.view.pen(OPERATOR))
        await operator.append([RunPaused(reason="sites gather")], Stamp())
        joined = SiteJoined(
            hardware={},
            software={},
            manifest_digest=one.data.manifest_digest,
            arithmetic=one.arithmetic,
        )
        for name, pen in self._pens.items():
            await pen.append([joined], Stamp())
            lives = await rig.until(lambda name=name: self._live(name), f"{name}'s admission")  # type: ignore[misc]
            self._tokens[name] = lives.token
        await self.hold(0, one.parameters_digest)
        await operator.append([RunResumed(reason="all are there")], Stamp())

    async def hold(self, version: int, digest: str) -> None:
        """All say that they hold a version."""
        source = "update" if version else "initial"
        said = VersionApplied.model_validate(
            {"version": version, "parameters_digest": digest, "source": source}
        )
        for name, pen in self._pens.items():
            await pen.append([said], self._stamp(name))

    async def train(self) -> dict[str, list[Block]]:
        """All train the blocks that they get; those of each."""
        held = {}
        for name, pen in self._pens.items():
            blocks = await self._rig.until(lambda name=name: self._leased(name), f"{name}'s blocks")  # type: ignore[misc]
            for one in blocks:
                what: dict[str, Any] = {"epoch": one.epoch, "block": one.block, "lease": one.lease}
                done = BlockCompleted(**what, loss=1.0, seconds=1.0)
                await pen.append([BlockStarted(**what), done], self._stamp(name))
            held[name] = blocks
        return held

    async def publish(self, number: int, blocks: list[Block], delta: dict[str, Any]) -> int:
        """One site announces its stored delta; the sequence. `delta`: blob, num_bytes, codec,
        base_version, norm, max_abs."""
        name = list(self._pens)[number]
        named = delta_blocks(blocks, self._rig.view.index())
        published = DeltaPublished(blocks=named, **delta)
        return await self._pens[name].append([published], self._stamp(name))

    async def committed(self, round_: int, delivered: int) -> Round:
        """Wait until a round is merged. `delivered`: sequence of its last delta."""
        rig = self._rig

        def found() -> list[tuple[int, RoundCommitted]]:
            return [one for one in rig.of(RoundCommitted) if one[1].round == round_]

        sequence, said = (await rig.until(found, f"the merge of round {round_}", PATIENCE_S))[0]
        closed = max(at for at, one in rig.of(RoundClosed) if one.round == round_)
        return Round(delivered, closed, sequence, said)

    def _stamp(self, name: str) -> Stamp:
        return Stamp(incarnation=self._tokens[name])

    def _live(self, name: str) -> Incarnation | None:
        return self._rig.view.live_at(name)

    def _leased(self, name: str) -> list[Block]:
        held = self._rig.view.held(self._tokens[name][0])
        return [block for block in held if block.state == LEASED]
