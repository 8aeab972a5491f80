"""A run with the real coordinator, a log in memory, blobs in a folder, and sites of the test.

The tensors are tiny, the deltas real files; a site holds parameters of its own and takes every step
by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eventlog.codec import Entry, decode
from eventlog.dir_blobs import DirBlobs
from eventlog.errors import BlobError
from eventlog.events import (
    OPERATOR,
    BlockCompleted,
    BlockStarted,
    DeltaBlock,
    DeltaPublished,
    Event,
    SiteDeparting,
    Token,
    VersionApplied,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection, run_projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View
from outer import codecs
from outer.arithmetic import self_test
from outer.coordinator import Coordinator
from outer.merge import apply_update
from outer.schedule import rule_at
from outer.versions import OuterState, digest, save_parameters
from outer.workshop import Workshop
from tests.support.scenario import RUN, config, created, joining

ARITHMETIC = self_test().operations
SHAPES = {"bias": (3,), "weight": (4, 3)}


def tensors(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Tensors of the model's form that a seed determines."""
    chance = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}


class World:
    """What a run consists of, and an observer that folds the whole log. `end` it."""

    def __init__(self, folder: Path, target: dict[str, int], **sections: Any) -> None:
        self.folder = folder
        self.config = config(target, lease_s=4.0, **sections)
        self.log = MemoryLog(RUN)
        self.blobs = DirBlobs(folder / "blobs")
        self.projection = Projection(":memory:", [LeaseTable()], RUN)
        self.view = View(self.projection.db)
        self.num_coordinators = 0

    async def found(self, num_sequences: int = 22, **changes: Any) -> None:
        """The run's first event, with real initial parameters."""
        parameters, path = tensors(0), self.folder / "initial"
        save_parameters(parameters, path)
        blob = await self.blobs.put(path)
        event = created(
            self.config,
            num_sequences,
            parameters_blob=blob.digest,
            parameters_digest=digest(parameters),
            **{"arithmetic": ARITHMETIC, **changes},
        )
        await self.operator(event)

    async def operator(self, event: Event) -> None:
        await self.fold()
        pen = Writer(self.log, OPERATOR)
        pen.set(*self.view.pen(OPERATOR))
        await pen.append([event], Stamp())

    async def fold(self) -> None:
        await run_projection(self.projection, self.log)

    async def until(self, condition: Callable[[], Any], what: str = "", seconds: float = 20) -> Any:
        """The first true value of a condition on the folded log."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await self.fold()
            if value := condition():
                return value
            await asyncio.sleep(0.002)
        raise AssertionError(f"waited in vain: {what or condition}")

    def coordinator(self, holder: str = "one", log: Any = None, **fields: Any) -> Coordinator:
        """Another coordinator process: a projection and a folder of its own."""
        self.num_coordinators += 1
        folder = self.folder / f"coordinator-{self.num_coordinators}"
        folder.mkdir()
        projection = Projection(":memory:", [LeaseTable()], RUN)
        shop = Workshop(self.blobs, folder, say=fields.get("say", lambda _: None))
        return Coordinator(log or self.log, projection, shop, holder, **fields)

    @asynccontextmanager
    async def coordinated(self, *others: Coordinator) -> AsyncIterator[list[asyncio.Task[None]]]:
        """These coordinators run (or one of our own) until the block ends; failures are raised."""
        tasks = [asyncio.create_task(one.run()) for one in others or (self.coordinator(),)]
        try:
            yield tasks
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def count(self, *kinds: str) -> int:
        """How many events of these types the log holds."""
        found = [decode(record) for record in self.log._records]
        return sum(one.envelope is not None and one.envelope.type in kinds for one in found)

    def state(self) -> str:
        return str(self.view.run().state)


class Site:
    """A site driven by a test: its trainer makes deltas from seeds."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.pen = Writer(world.log, f"site.{name}")
        self.token: Token | None = None
        self.model = OuterState.initial(tensors(0))
        self.version = 0
        self.num_deltas = 0

    async def says(self, *events: Event) -> int:
        """Append events of our incarnation; the last sequence."""
        await self.world.fold()
        self.pen.set(*self.world.view.pen(self.pen.subject))
        return await self.pen.append(events, Stamp(incarnation=self.token))

    async def join(self, **changes: Any) -> None:
        """Ask to be admitted, and say which version we hold."""
        self.token = None
        sequence = await self.says(joining(**{"arithmetic": ARITHMETIC, **changes}))
        answer = await self.world.until(
            lambda: (one := self.world.view.answer(sequence)) and one.incarnation and one,
            "an admission",
        )
        one = self.world.view.incarnation(answer.incarnation)
        assert one is not None
        self.token = one.token
        await self.catch_up(again=True)

    async def catch_up(self, again: bool = False) -> None:
        """Take the steps that were committed since, each with our own arithmetic."""
        await self.world.fold()
        rows = self.world.view.versions(after=self.version)
        for row in rows:
            path = self.world.folder / f"{self.name}-update"
            path.unlink(missing_ok=True)
            await self.world.blobs.get(row.update_blob, path)
            rule = rule_at(self.world.view, row.version, row.merged_tokens)
            apply_update(self.model.parameters, self.model.momentum, path, rule)
            self.version = row.version
        if rows or again:
            held = digest(self.model.parameters)
            await self.says(
                VersionApplied(version=self.version, parameters_digest=held, source="update")
            )

    async def train(self) -> list[DeltaBlock]:
        """Start and complete everything that is granted to us in the open round."""
        assert self.token is not None
        view, seq = self.world.view, self.token[0]
        held = await self.world.until(lambda: view.held(seq), f"blocks for {self.name}")
        for one in held:
            named = {"epoch": one.epoch, "block": one.block, "lease": one.lease}
            await self.says(BlockStarted.model_validate(named))
            await self.says(BlockCompleted.model_validate({**named, "loss": 2.0, "seconds": 0.1}))
        return [
            DeltaBlock(
                epoch=one.epoch,
                block=one.block,
                lease=one.lease,
                tokens=view.index().tokens(one.block),
            )
            for one in held
        ]

    async def publish(self, blocks: list[DeltaBlock], blob: str = "", **changes: Any) -> int:
        """Deliver blocks in a delta of our own making; its sequence."""
        self.num_deltas += 1
        if not blob:
            seed = 1000 * self.num_deltas + sum(map(ord, self.name))
            blob = await self.store(tensors(seed, 0.1), "bf16")
        norms = await self._norms(blob)
        fields = {
            "base_version": self.version,
            "blocks": blocks,
            "blob": blob,
            "num_bytes": self._length(blob),
            "codec": "bf16",
            "norm": norms.norm,
            "max_abs": norms.max_abs,
        }
        return await self.says(DeltaPublished.model_validate({**fields, **changes}))

    def _length(self, blob: str) -> int:
        """Of a stored blob; 1 where there is none."""
        path = self.world.blobs.path / blob
        return path.stat().st_size if path.exists() else 1

    async def _norms(self, blob: str) -> codecs.Norms:
        """Those of a stored delta; NaN where it is none."""
        path = self.world.folder / f"{self.name}-measured"
        path.unlink(missing_ok=True)
        try:
            await self.world.blobs.get(blob, path)
            return codecs.measure(codecs.decode(path))
        except (BlobError, codecs.DeltaInvalid):
            return codecs.Norms(math.nan, math.nan, False)

    async def store(self, delta: dict[str, Tensor], codec: str) -> str:
        """The digest of a stored delta."""
        path = self.world.folder / f"{self.name}-{self.num_deltas}"
        codecs.encode(delta, codec, path)
        return (await self.world.blobs.put(path)).digest

    async def round(self) -> int:
        """Train and deliver what we get in a round; the delta's sequence."""
        return await self.publish(await self.train())

    async def leave(self) -> None:
        assert self.token is not None
        seq = self.token[0]
        await self.says(SiteDeparting(code="walltime", reason="its job ends"))
        view = self.world.view
        await self.world.until(
            lambda: (one := view.incarnation(seq)) and one.state == "departed", "a departure"
        )


async def started(folder: Path, target: dict[str, int], **sections: Any) -> World:
    """A world with a founded run."""
    world = World(folder, target, **sections)
    await world.found()
    return world


class Clock:
    """A clock that stands until it is put forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def rounds(world: World, sites: list[Site], num: int) -> None:
    """So many rounds in which every site delivers."""
    for _ in range(num):
        version = world.view.run().version
        for site in sites:
            await site.round()
        await world.until(lambda v=version: world.view.run().version > v, "a commit")
        for site in sites:
            await site.catch_up()


def entries(world: World) -> list[Entry]:
    """Everything in the log."""
    return [decode(record) for record in world.log._records]
